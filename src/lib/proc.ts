import { constants, openSync, readdirSync, readFileSync, readlinkSync, readSync } from "node:fs";
import { isGone } from "./files.ts";

/** Longer than any text of /proc/PID/stat. */
const statBytes = Buffer.alloc(1024);

/** Field 22 of /proc/PID/stat: with the pid it names a process for good. undefined: no such process. */
export function startTicks(pid: number): bigint | undefined {
  let stat: string;
  try {
    stat = readFileSync(`/proc/${pid}/stat`, "utf8");
  } catch {
    return undefined;
  }
  if (hasEnded(stat)) return undefined;
  // The command name, the second field, is in parentheses and may hold spaces and parentheses itself.
  const ticks = stat.slice(stat.lastIndexOf(")") + 2).split(" ")[19];
  return ticks === undefined ? undefined : BigInt(ticks);
}

/** A descriptor of /proc/PID/stat, to be closed by the caller. undefined: no such process. */
export function openStat(pid: number): number | undefined {
  return unlessGone(() => openSync(`/proc/${pid}/stat`, "r"));
}

/** Whether the process of such a descriptor runs. */
export function isAlive(stat: number): boolean {
  const length = unlessGone(() => readSync(stat, statBytes, 0, statBytes.length, 0)) ?? 0;
  return !hasEnded(statBytes.toString("latin1", 0, length));
}

/** Whether that is what `stat` says: of a process that nobody has waited for, too. */
function hasEnded(stat: string): boolean {
  return ["", "Z", "X"].includes(stateIn(stat));
}

function stateIn(stat: string): string {
  return stat.charAt(stat.lastIndexOf(")") + 2);
}

/** All processes there are. */
export function processIds(): number[] {
  return readdirSync("/proc").flatMap((name) => (/^\d+$/.test(name) ? [Number(name)] : []));
}

/** A process's arguments; empty when it has ended, or while it becomes another program. */
export function commandLine(pid: number): string[] {
  return listIn(`/proc/${pid}/cmdline`);
}

/** The environment that a process was started with, as `NAME=VALUE`; empty when it has ended. */
export function environment(pid: number): string[] {
  return listIn(`/proc/${pid}/environ`);
}

/** What the kernel says each of a process's threads does: `R`, `S`, `T`, …; of those that have not ended. The first may end before
 *  others. */
export function threadStates(pid: number): string[] {
  return (unlessGone(() => readdirSync(`/proc/${pid}/task`)) ?? []).flatMap((id) => {
    const stat = unlessGone(() => readFileSync(`/proc/${pid}/task/${id}/stat`, "utf8")) ?? "";
    return hasEnded(stat) ? [] : [stateIn(stat)];
  });
}

/** Paths of the files that a process has open for writing, as the kernel tells them: of one that was removed with ` (deleted)`. */
export function filesOpenForWriting(pid: number): string[] {
  return (unlessGone(() => readdirSync(`/proc/${pid}/fd`)) ?? []).flatMap((fd) => {
    const path = unlessGone(() => readlinkSync(`/proc/${pid}/fd/${fd}`));
    const info = unlessGone(() => readFileSync(`/proc/${pid}/fdinfo/${fd}`, "utf8")) ?? "";
    const flags = Number.parseInt(/^flags:\s*(\d+)$/m.exec(info)?.[1] ?? "0", 8);
    return path !== undefined && (flags & (constants.O_WRONLY | constants.O_RDWR)) !== 0 ? [path] : [];
  });
}

/** What a file says, each ended by a NUL. A process that has ended and was not waited for yet says nothing. */
function listIn(path: string): string[] {
  const text = unlessGone(() => readFileSync(path, "utf8")) ?? "";
  return text === "" ? [] : text.replace(/\0$/, "").split("\0");
}

/** Anything else than that it has ended, such as a lack of descriptors, tells nothing of a process. */
function unlessGone<T>(read: () => T): T | undefined {
  try {
    return read();
  } catch (error) {
    if (isGone(error)) return undefined;
    throw error;
  }
}
