import { type FileHandle, open, readFile } from "node:fs/promises";
import { hasCode } from "./files.ts";

/** Where pages are larger, as they may be on arm64, other pages than those in swap are read, which does no harm. */
const PAGE_BYTES = 4096;
/** Of `/proc/PID/pagemap`, for each page. */
const ENTRY_BYTES = 8;
/** In the last byte of an entry: the page is in swap. */
const SWAPPED = 0x40;
/** What is looked at in one go: a process may have reserved any amount. */
const LOOK_BYTES = 256 * 1024 * 1024;
const READ_PAGES = 16;

/** Brings back what a process has in swap of its private memory, by reading it, but no more than `mostBytes`; the process itself notices
 *  nothing. Ends early when `signal` aborts. Errors: when there is no such process, or it may not be looked into. */
export async function bringBack(
  pid: number,
  { mostBytes, signal }: { readonly mostBytes: number; readonly signal: AbortSignal },
): Promise<void> {
  const maps = await readFile(`/proc/${pid}/maps`, "utf8");
  await using pagemap = await open(`/proc/${pid}/pagemap`);
  await using memory = await open(`/proc/${pid}/mem`);
  const read = Buffer.allocUnsafe(READ_PAGES * PAGE_BYTES);
  let leftBytes = mostBytes;
  for (const [from, to] of privateRanges(maps)) {
    for (let at = from; at < to; at += LOOK_BYTES) {
      for (const address of await swappedFrom(pagemap, at, Math.min(at + LOOK_BYTES, to))) {
        if (signal.aborted || leftBytes <= 0) return;
        await unlessUnmapped(memory.read(read, 0, Math.min(read.length, to - address), address));
        leftBytes -= read.length;
      }
    }
  }
}

/** The process may have given up what it had when the ranges were listed. */
async function unlessUnmapped(reading: Promise<unknown>): Promise<void> {
  try {
    await reading;
  } catch (error) {
    if (!hasCode(error, "EIO")) throw error;
  }
}

/** Where it can write and nobody else: `[from, to)` of each such range, from the text of /proc/PID/maps. */
function privateRanges(maps: string): [from: number, to: number][] {
  return [...maps.matchAll(/^([0-9a-f]+)-([0-9a-f]+) rw.p /gm)].map(([, from = "", to = ""]) => [
    Number.parseInt(from, 16),
    Number.parseInt(to, 16),
  ]);
}

/** Addresses between these two, from each of which on READ_PAGES are worth reading. */
async function swappedFrom(pagemap: FileHandle, from: number, to: number): Promise<number[]> {
  const pages = (to - from) / PAGE_BYTES;
  const entries = Buffer.alloc(pages * ENTRY_BYTES);
  await pagemap.read(entries, 0, entries.length, (from / PAGE_BYTES) * ENTRY_BYTES);
  const found: number[] = [];
  for (let page = 0; page < pages; page += 1) {
    const last = entries[(page + 1) * ENTRY_BYTES - 1] ?? 0;
    if ((last & SWAPPED) === 0) continue;
    found.push(from + page * PAGE_BYTES);
    page += READ_PAGES - 1;
  }
  return found;
}
