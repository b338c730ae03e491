import { closeSync, constants, openSync, readdirSync, readFileSync, writeFileSync, writeSync } from "node:fs";
import { open, rmdir } from "node:fs/promises";
import { isGone, isMissing } from "#lib/files";

/** undefined: no such file, or a process or group that has just gone. */
export function readText(file: string): string | undefined {
  try {
    return readFileSync(file, "utf8").trim();
  } catch (error) {
    if (isGone(error)) return undefined;
    throw error;
  }
}

/** Throws ENOENT when there is no such file. */
export function readNumber(file: string): number {
  return Number(readFileSync(file, "utf8"));
}

/** Of a limit: no limit is infinite. Throws ENOENT when there is no such file. */
export function readLimit(file: string): number {
  const text = readFileSync(file, "utf8").trim();
  return text === "max" ? Number.POSITIVE_INFINITY : Number(text);
}

/** The number after `name` in a file of `name number` lines; 0 when it has none. */
export function readField(file: string, name: string): number {
  const match = new RegExp(`^${name} (\\d+)$`, "m").exec(readText(file) ?? "");
  return match === null ? 0 : Number(match[1]);
}

/** The sum of several such fields. */
export function readFields(file: string, names: readonly string[]): number {
  const text = readText(file) ?? "";
  return names.reduce((sum, name) => sum + Number(new RegExp(`^${name} (\\d+)$`, "m").exec(text)?.[1] ?? 0), 0);
}

export function write(file: string, value: string): void {
  try {
    writeFileSync(file, value);
  } catch (error) {
    throw new Error(`cannot write "${value}" to ${file}`, { cause: error });
  }
}

/** Without O_CREAT: a group may be on its way out, and to who would make a file that is missing the kernel says EACCES, not ENOENT. */
const CHANGE = constants.O_WRONLY | constants.O_TRUNC;

/** Throws ENOENT when there is no such file. */
export function change(file: string, value: number): void {
  const opened = openSync(file, CHANGE);
  try {
    writeSync(opened, String(value));
  } finally {
    closeSync(opened);
  }
}

/** The same, where the kernel takes long for it. */
export async function changeSlowly(file: string, value: string): Promise<void> {
  await using opened = await open(file, CHANGE);
  await opened.write(value);
}

/** Names of the folders in a folder; none when it is not there. */
export function subdirs(dir: string): string[] {
  try {
    return readdirSync(dir, { withFileTypes: true }).flatMap((entry) => (entry.isDirectory() ? [entry.name] : []));
  } catch (error) {
    if (isMissing(error)) return [];
    throw error;
  }
}

/** False when it is busy. Groups that somebody made below it go first. */
export async function removeDir(dir: string): Promise<boolean> {
  try {
    // The kernel takes milliseconds for each.
    await rmdir(dir);
    return true;
  } catch (error) {
    if (isMissing(error)) return true;
    for (const name of subdirs(dir)) await removeDir(`${dir}/${name}`);
    return false;
  }
}
