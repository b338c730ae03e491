import { readdirSync, readFileSync } from "node:fs";

/** Field 22 of /proc/PID/stat: with the pid it names a process for good. undefined: no such process. */
export function startTicks(pid: number): bigint | undefined {
  let stat: string;
  try {
    stat = readFileSync(`/proc/${pid}/stat`, "utf8");
  } catch {
    return undefined;
  }
  // The command name (field 2) is in parentheses and may hold spaces and parentheses itself.
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
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
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "utf8").replace(/\0$/, "").split("\0");
  } catch {
    return [];
  }
}
