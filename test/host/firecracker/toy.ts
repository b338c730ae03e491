import { writeFileSync } from "node:fs";
import { open } from "node:fs/promises";
import { join } from "node:path";
import { MIB } from "#domain";
import type { FirecrackerGuest } from "./bench.ts";

/**
 * A guest of a few instructions, for hosts whose /dev/kvm runs no ordinary kernel (it polls; no interrupts, no SSE). It says
 * `T` on the serial port, then counts: each count is written to a fixed place, and to a page of its own, and said by a dot. So
 * the memory of a snapshot shows when it was taken, and lacks a page when a snapshot before it was lost.
 */
const COUNTER_OFFSET = 32 * MIB;
/** After so many counts it begins again with the first page: 16 MiB are written. */
const PAGES = 4096;
/** About 100 counts a second: 40 seconds for all pages. */
const SLOW_WAIT = 10_000;
/** All pages in tenths of a second. */
const FAST_WAIT = 1;
const PAGE_BYTES = 4096;
const LOADED_AT = 16 * MIB;

const codeThatWaits = (turns: number): number[][] => [
  [0x66, 0xba, 0xf8, 0x03], // mov dx, 0x3f8
  [0x48, 0xc7, 0xc3, 0x00, 0x00, 0x00, 0x02], // mov rbx, COUNTER_OFFSET
  [0xb0, 0x54], // mov al, 'T'
  [0xee], // out dx, al
  [0xb9, turns & 0xff, turns >> 8, 0x00, 0x00], // next: mov ecx, turns
  [0xff, 0xc9], // wait: dec ecx
  [0x75, 0xfc], // jnz wait
  [0x48, 0xff, 0x03], // inc qword [rbx]
  [0x48, 0x8b, 0x03], // mov rax, [rbx]
  [0x48, 0x89, 0xc6], // mov rsi, rax
  [0x81, 0xe6, 0xff, 0x0f, 0x00, 0x00], // and esi, PAGES - 1
  [0xc1, 0xe6, 0x0c], // shl esi, 12
  [0x48, 0x81, 0xc6, 0x00, 0x10, 0x00, 0x02], // add rsi, COUNTER_OFFSET + PAGE_BYTES
  [0x48, 0x89, 0x06], // mov [rsi], rax
  [0xb0, 0x2e], // mov al, '.'
  [0xee], // out dx, al
  [0xeb, 0xd6], // jmp next
];

export function toyGuest(dir: string): FirecrackerGuest {
  return guestThatWaits(dir, SLOW_WAIT);
}

export function fastToyGuest(dir: string): FirecrackerGuest {
  return guestThatWaits(dir, FAST_WAIT);
}

/** A guest whose files are made in `dir`. The drives and the initrd hold nothing; it does not look. */
function guestThatWaits(dir: string, turns: number): FirecrackerGuest {
  const file = (name: string, data: Uint8Array): string => {
    const path = join(dir, name);
    writeFileSync(path, data, { mode: 0o444 });
    return path;
  };
  return {
    kernelPath: file("toy.elf", elf(Uint8Array.from(codeThatWaits(turns).flat()))),
    initrdPath: file("toy.initrd", new Uint8Array(PAGE_BYTES)),
    imagePath: file("toy.image", new Uint8Array(MIB)),
    hasAgent: false,
  };
}

/** What a memory file says of the moment it was written at: the count, and whether every page agrees with it. */
export async function readToyMemory(path: string): Promise<{ readonly count: number; readonly consistent: boolean }> {
  const file = await open(path, "r");
  try {
    const bytes = Buffer.alloc((PAGES + 1) * PAGE_BYTES);
    await file.read(bytes, 0, bytes.length, COUNTER_OFFSET);
    const at = (page: number): number => Number(bytes.readBigUInt64LE(page * PAGE_BYTES));
    const count = at(0);
    const pages = Array.from({ length: Math.min(count, PAGES) - 1 }, (_, index) => index + 1);
    // The last count may not have got to its page yet.
    return { count, consistent: count < PAGES && pages.every((page) => at(page + 1) === page) };
  } finally {
    await file.close();
  }
}

/** A 64-bit ELF file with one segment. */
function elf(code: Uint8Array): Uint8Array {
  const headerBytes = 64;
  const segmentBytes = 56;
  const start = headerBytes + segmentBytes;
  const bytes = Buffer.alloc(start + code.length);
  bytes.set([0x7f, 0x45, 0x4c, 0x46, 2, 1, 1]);
  bytes.writeUInt16LE(2, 16); // executable
  bytes.writeUInt16LE(62, 18); // x86-64
  bytes.writeUInt32LE(1, 20);
  bytes.writeBigUInt64LE(BigInt(LOADED_AT), 24); // entry
  bytes.writeBigUInt64LE(BigInt(headerBytes), 32);
  bytes.writeUInt16LE(headerBytes, 52);
  bytes.writeUInt16LE(segmentBytes, 54);
  bytes.writeUInt16LE(1, 56);
  bytes.writeUInt16LE(64, 58);
  bytes.writeUInt32LE(1, headerBytes); // to be loaded
  bytes.writeUInt32LE(7, headerBytes + 4);
  bytes.writeBigUInt64LE(BigInt(start), headerBytes + 8);
  bytes.writeBigUInt64LE(BigInt(LOADED_AT), headerBytes + 16);
  bytes.writeBigUInt64LE(BigInt(LOADED_AT), headerBytes + 24);
  bytes.writeBigUInt64LE(BigInt(code.length), headerBytes + 32);
  bytes.writeBigUInt64LE(BigInt(code.length), headerBytes + 40);
  bytes.set(code, start);
  return bytes;
}
