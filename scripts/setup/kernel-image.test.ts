import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { test } from "node:test";
import { gzipSync, zstdCompressSync } from "node:zlib";
import { unpackKernel } from "./kernel-image.ts";

const REPEATED = Buffer.from("over and ");
const REPEATS = 2000;
/** What cannot be packed, then one phrase again and again. */
const kernel = Buffer.concat([
  Buffer.from("\x7fELF", "latin1"),
  randomBytes(5000),
  ...Array.from({ length: REPEATS }, () => REPEATED),
]);
const literals = kernel.length - REPEATED.length * (REPEATS - 1);

interface ImageOptions {
  readonly size?: number;
  readonly setupSectors?: number;
  readonly version?: number;
  readonly magic?: string;
}

/** A bzImage around a payload, with something before and behind it, as there always is. */
function bzImage(
  packed: Buffer,
  { size, setupSectors = 3, version = 0x20f, magic = "HdrS" }: ImageOptions = {},
): Buffer {
  const offset = 0x77;
  const tail = Buffer.alloc(size === undefined ? 0 : 4);
  if (size !== undefined) tail.writeUInt32LE(size);
  const start = ((setupSectors || 4) + 1) * 512 + offset;
  const image = Buffer.concat([Buffer.alloc(start), packed, tail, Buffer.from("relocations")]);
  image[0x1f1] = setupSectors;
  image.write(magic, 0x202, "latin1");
  image.writeUInt16LE(version, 0x206);
  image.writeUInt32LE(offset, 0x248);
  image.writeUInt32LE(packed.length + tail.length, 0x24c);
  return image;
}

/** Whatever goes beyond 15 in a length of LZ4. */
function lengthBytes(length: number): number[] {
  const rest = length - 15;
  return rest < 0 ? [] : [...Array<number>(Math.floor(rest / 255)).fill(255), rest % 255];
}

function lz4Block(content: readonly (Buffer | readonly number[])[]): Buffer {
  const block = Buffer.concat(content.map((part) => Buffer.from(part)));
  const head = Buffer.alloc(4);
  head.writeUInt32LE(block.length);
  return Buffer.concat([head, block]);
}

/** Two blocks: the first is literals and one match that reaches into itself, the second is literals alone. */
function lz4(data: Buffer): Buffer {
  const last = data.subarray(-REPEATED.length);
  const match = data.length - literals - last.length;
  const first = [
    [0xff],
    lengthBytes(literals),
    data.subarray(0, literals),
    [REPEATED.length, 0],
    lengthBytes(match - 4),
  ];
  return Buffer.concat([Buffer.from("02214c18", "hex"), lz4Block(first), lz4Block([[last.length << 4], last])]);
}

const size = kernel.length;

test("the kernel comes out of an image however it is packed", () => {
  assert.ok(unpackKernel(bzImage(gzipSync(kernel))).equals(kernel));
  assert.ok(unpackKernel(bzImage(zstdCompressSync(kernel), { size })).equals(kernel));
  assert.ok(unpackKernel(bzImage(lz4(kernel), { size })).equals(kernel));
  // No setup sectors is the old way to say four.
  assert.ok(unpackKernel(bzImage(lz4(kernel), { size, setupSectors: 0 })).equals(kernel));
  assert.equal(unpackKernel(kernel), kernel);
});

test("what is no kernel, or a damaged one, is refused with the reason", () => {
  const refused = (image: Buffer, reason: RegExp): void => assert.throws(() => unpackKernel(image), reason);
  refused(Buffer.from("MZ"), /neither an ELF file nor a bzImage/);
  refused(bzImage(kernel, { magic: "none" }), /neither an ELF file nor a bzImage/);
  refused(bzImage(kernel, { version: 0x207 }), /boot protocol 2\.7; 2\.8/);
  refused(bzImage(lz4(kernel), { size }).subarray(0, 6000), /cut off or damaged/);
  refused(bzImage(Buffer.from("\xfd7zXZ\0 and so on", "latin1")), /packed with xz, .*extract-vmlinux/);
  refused(bzImage(Buffer.from("neverheardof")), /unknown way \(6e65766572686561/);
  refused(bzImage(zstdCompressSync(Buffer.from("not a kernel")), { size: 12 }), /not an ELF file/);
  refused(bzImage(zstdCompressSync(kernel), { size: size + 1 }), /damaged/);
});

test("damaged LZ4 data is noticed", () => {
  const packed = lz4(kernel);
  const refused = (change: (copy: Buffer) => void, reason: RegExp, claimed = size): void => {
    const copy = Buffer.from(packed);
    change(copy);
    assert.throws(() => unpackKernel(bzImage(copy, { size: claimed })), reason);
  };
  const matchOffsetAt = 4 + 4 + 1 + lengthBytes(literals).length + literals;
  refused((copy) => copy.writeUInt16LE(0, matchOffsetAt), /LZ4 data is damaged/);
  refused((copy) => copy.writeUInt16LE(65535, matchOffsetAt), /LZ4 data is damaged/);
  refused((copy) => copy.writeUInt32LE(packed.length, 4), /LZ4 data is damaged/);
  refused(() => {}, /LZ4 data gives \d+ bytes/, size + 1);
  refused(() => {}, /LZ4 data is damaged/, size - 1);
});
