/** One entry of an archive; folders stand before what is in them. */
export type CpioEntry =
  | { readonly path: string; readonly kind: "directory" }
  | { readonly path: string; readonly kind: "file"; readonly mode: number; readonly data: Uint8Array }
  | {
      readonly path: string;
      readonly kind: "device";
      readonly mode: number;
      readonly major: number;
      readonly minor: number;
    };

const TYPE_BITS = { directory: 0o040000, file: 0o100000, device: 0o020000 } as const;
const ALIGN_BYTES = 4;
const TRAILER = "TRAILER!!!";
const NO_DATA = new Uint8Array();
const NO_DEVICE = { major: 0, minor: 0 };

/**
 * An archive in cpio's format `newc`, which the kernel takes as its first file system. Everything belongs to root and is of no
 * date, so that the same entries give the same bytes. Devices are character devices.
 */
export function cpioArchive(entries: readonly CpioEntry[]): Buffer {
  const parts = entries.flatMap((entry, index) => {
    const mode = TYPE_BITS[entry.kind] | (entry.kind === "directory" ? 0o755 : entry.mode);
    const { major, minor } = entry.kind === "device" ? entry : NO_DEVICE;
    return record({
      path: entry.path,
      inode: index + 1,
      mode,
      major,
      minor,
      data: entry.kind === "file" ? entry.data : NO_DATA,
    });
  });
  return Buffer.concat([...parts, ...record({ path: TRAILER, inode: 0, mode: 0, ...NO_DEVICE, data: NO_DATA })]);
}

interface Fields {
  readonly path: string;
  readonly inode: number;
  readonly mode: number;
  readonly major: number;
  readonly minor: number;
  readonly data: Uint8Array;
}

function record({ path, inode, mode, major, minor, data }: Fields): Uint8Array[] {
  const name = Buffer.from(`${path}\0`);
  const [uid, gid, links, mtime, deviceMajor, deviceMinor, checksum] = [0, 0, 1, 0, 0, 0, 0];
  const numbers = [
    inode,
    mode,
    uid,
    gid,
    links,
    mtime,
    data.length,
    deviceMajor,
    deviceMinor,
    major,
    minor,
    name.length,
    checksum,
  ];
  const head = Buffer.from(`070701${numbers.map((number) => number.toString(16).padStart(8, "0")).join("")}`);
  return [...aligned(Buffer.concat([head, name])), ...aligned(data)];
}

function aligned(data: Uint8Array): Uint8Array[] {
  const gap = -data.length & (ALIGN_BYTES - 1);
  return gap === 0 ? [data] : [data, Buffer.alloc(gap)];
}
