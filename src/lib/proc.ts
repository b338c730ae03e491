import { readdirSync, readFileSync } from "node:fs";
import { isGone } from "./files.ts";

/** Field 22 of /proc/PID/stat: with the pid it names a process for good. undefined: no such process. */
export function startTicks(pid: number): bigint | undefined {
  let stat: string;
  try {
    stat = readFileSync(`/proc/${pid}/stat`, "utf8");
  } catch {
    return undefined;
  }
  const fields = fieldsAfterName(stat);
  if (fields[0] === "Z" || fields[0] === "X") return undefined;
  const ticks = fields[19];
  return ticks === undefined ? undefined : BigInt(ticks);
}

/** All processes there are. */
export function processIds(): number[] {
  return readdirSync("/proc").flatMap((name) => (/^\d+$/.test(name) ? [Number(name)] : []));
}

/** A process's arguments; empty when it has ended, or while it becomes another program. */
export function commandLine(pid: number): string[] {
  const text = unlessGone(() => readFileSync(`/proc/${pid}/cmdline`, "utf8"));
  return text?.replace(/\0$/, "").split("\0") ?? [];
}

/** What the kernel says each of a process's threads does: `R`, `S`, `T`, …; none when it has ended. */
export function threadStates(pid: number): string[] {
  return (unlessGone(() => readdirSync(`/proc/${pid}/task`)) ?? []).flatMap((id) => {
    const stat = unlessGone(() => readFileSync(`/proc/${pid}/task/${id}/stat`, "utf8"));
    return stat === undefined ? [] : fieldsAfterName(stat).slice(0, 1);
  });
}

/** Those of a `stat` file from the third on. The command name, the second, is in parentheses and may hold spaces and parentheses
 *  itself. */
function fieldsAfterName(stat: string): string[] {
  return stat.slice(stat.lastIndexOf(")") + 2).split(" ");
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
