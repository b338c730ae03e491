import { gunzipSync, zstdDecompressSync } from "node:zlib";
import { LZ4_LEGACY_MAGIC, unpackLz4Legacy } from "./lz4.ts";

/** Of the header at the front of a bzImage (Linux, Documentation/arch/x86/boot.rst). */
const HEADER = {
  setupSectors: 0x1f1,
  magic: 0x202,
  version: 0x206,
  payloadOffset: 0x248,
  payloadLength: 0x24c,
  end: 0x250,
} as const;
/** The first version of the header that says where the payload is. */
const FIRST_WITH_PAYLOAD = 0x208;
const SECTOR_BYTES = 512;
const DEFAULT_SETUP_SECTORS = 4;
/** At the end of a payload stands how large it is unpacked; gzip has that in its own format. */
const SIZE_BYTES = 4;

const ELF = Buffer.from("\x7fELF", "latin1");
const ZSTD_MAGIC = [0x28, 0xb5, 0x2f, 0xfd];

interface Packing {
  readonly name: string;
  readonly magic: Uint8Array;
  /** Absent where nothing on board unpacks it. `size` is what comes out. */
  readonly unpack?: (packed: Buffer, size: number) => Buffer;
}

const PACKINGS: readonly Packing[] = [
  { name: "LZ4", magic: LZ4_LEGACY_MAGIC, unpack: unpackLz4Legacy },
  { name: "zstd", magic: Buffer.from(ZSTD_MAGIC), unpack: (packed) => zstdDecompressSync(packed) },
  { name: "gzip", magic: Buffer.from([0x1f, 0x8b]), unpack: (packed) => gunzipSync(packed) },
  { name: "xz", magic: Buffer.from("\xfd7zXZ\0", "latin1") },
  { name: "bzip2", magic: Buffer.from("BZh", "latin1") },
  { name: "LZMA", magic: Buffer.from([0x5d, 0, 0]) },
  { name: "LZO", magic: Buffer.from([0x89, 0x4c, 0x5a, 0x4f]) },
];

/**
 * The kernel itself (ELF, `vmlinux`) out of what a boot loader takes (`bzImage`, Debian's `vmlinuz`). What is one already comes
 * back as it is. Throws when `image` is neither, or is packed in a way that nothing here unpacks.
 */
export function unpackKernel(image: Buffer): Buffer {
  if (startsWith(image, ELF)) return image;
  const packed = payload(image);
  const packing = PACKINGS.find(({ magic }) => startsWith(packed, magic));
  if (packing === undefined)
    throw new Error(`the kernel is packed in an unknown way (${packed.toString("hex", 0, 8)}…)`);
  if (packing.unpack === undefined)
    throw new Error(
      `the kernel is packed with ${packing.name}, which is not supported: unpack it with Linux's own scripts/extract-vmlinux`,
    );
  const size = packed.readUInt32LE(packed.length - SIZE_BYTES);
  const kernel = packing.unpack(packing.name === "gzip" ? packed : packed.subarray(0, -SIZE_BYTES), size);
  if (kernel.length !== size)
    throw new Error(`the kernel has ${kernel.length} bytes unpacked where its image says ${size}: it is damaged`);
  if (!startsWith(kernel, ELF)) throw new Error("what the image holds is not an ELF file");
  return kernel;
}

/** The packed kernel in a bzImage, the size behind it included. */
function payload(image: Buffer): Buffer {
  if (image.length < HEADER.end || image.toString("latin1", HEADER.magic, HEADER.magic + 4) !== "HdrS")
    throw new Error("not a kernel for x86: neither an ELF file nor a bzImage");
  const version = image.readUInt16LE(HEADER.version);
  if (version < FIRST_WITH_PAYLOAD)
    throw new Error(
      `the bzImage is of boot protocol ${version >> 8}.${version & 0xff}; 2.8 (Linux 2.6.26) or newer is needed`,
    );
  const setupSectors = image[HEADER.setupSectors] || DEFAULT_SETUP_SECTORS;
  const start = (setupSectors + 1) * SECTOR_BYTES + image.readUInt32LE(HEADER.payloadOffset);
  const end = start + image.readUInt32LE(HEADER.payloadLength);
  if (end > image.length || end - start <= SIZE_BYTES)
    throw new Error(
      `the bzImage has ${image.length} bytes, but its kernel would lie from ${start} to ${end}: it is cut off or damaged`,
    );
  return image.subarray(start, end);
}

function startsWith(data: Buffer, magic: Uint8Array): boolean {
  return data.subarray(0, magic.length).equals(magic);
}
