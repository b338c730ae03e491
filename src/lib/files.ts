import { closeSync, fstatSync, openSync, readSync } from "node:fs";
import { open, rename, unlink } from "node:fs/promises";
import { basename, dirname, join } from "node:path";

/** Makes names different that are made in the same millisecond. */
let temporaries = 0;

/**
 * Writes a file so that it is there whole or not at all: temp file beside it, then rename. With `durable` the bytes and the
 * folder are on stable storage before this returns. `mode` holds from the first byte on.
 */
export async function writeFileAtomic(
  path: string,
  data: string | Uint8Array,
  options: { readonly mode?: number; readonly durable?: boolean } = {},
): Promise<void> {
  temporaries += 1;
  const temp = join(dirname(path), `.${basename(path)}.${process.pid}.${Date.now()}.${temporaries}.tmp`);
  const file = await open(temp, "wx", options.mode ?? 0o644);
  try {
    try {
      await file.writeFile(data);
      if (options.durable) await file.sync();
    } finally {
      await file.close();
    }
    await rename(temp, path);
  } catch (error) {
    await unlink(temp).catch(() => {});
    throw error;
  }
  if (options.durable) await syncFile(dirname(path));
}

/** Puts a file, or the names in a folder, on stable storage. */
export async function syncFile(path: string): Promise<void> {
  const file = await open(path, "r");
  try {
    await file.sync();
  } finally {
    await file.close();
  }
}

/** The last bytes of a file, however large it is. */
export function readEnd(path: string, bytes: number): string {
  const file = openSync(path, "r");
  try {
    const from = Math.max(0, fstatSync(file).size - bytes);
    const end = Buffer.alloc(bytes);
    return end.toString("utf8", 0, readSync(file, end, 0, bytes, from));
  } finally {
    closeSync(file);
  }
}

/** For `catch`: passes over the error a missing file gives, and no other. */
export function ignoreMissing(error: unknown): undefined {
  if (!isMissing(error)) throw error;
}

/** True when a full disk, or a full quota, is behind an error. */
export function isDiskFull(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  if (hasCode(error, "ENOSPC", "EDQUOT")) return true;
  return isDiskFull(error.cause) || (error instanceof AggregateError && error.errors.some(isDiskFull));
}

/** True for the error a missing file gives. */
export function isMissing(error: unknown): boolean {
  return hasCode(error, "ENOENT", "ENOTDIR");
}

/** No such file of the kernel's, or what it spoke of, a process or a group, has just gone. */
export function isGone(error: unknown): boolean {
  return isMissing(error) || hasCode(error, "ENODEV", "ESRCH");
}

/** Whether the kernel has refused something for one of these reasons, such as `EBUSY`. */
export function hasCode(error: unknown, ...codes: readonly string[]): boolean {
  return error instanceof Error && "code" in error && codes.includes(String(error.code));
}
