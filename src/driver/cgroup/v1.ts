import { existsSync, mkdirSync } from "node:fs";
import { dirname } from "node:path";
import { hasCode } from "#lib/files";
import { change, changeSlowly, readField, readFields, readNumber, readText, write } from "./files.ts";
import {
  type CgroupMemory,
  type CgroupStats,
  type CgroupVersion,
  CPU_PERIOD_USEC,
  type LimitReading,
  type Limits,
} from "./limits.ts";

const NEEDED = ["memory", "cpu", "cpuacct", "pids"];

/** Version 1: a hierarchy for each controller. The group is made in all of them, because runsc joins all of them and gives
 *  those it makes itself to nobody. */
export class V1Hierarchies implements CgroupVersion {
  /** Controller → mount point. */
  readonly #mounts: ReadonlyMap<string, string>;
  /** Each once, memory's first: runsc joins no hierarchy that it does not know, but cannot do without this one. */
  readonly #mountPoints: readonly string[];

  constructor(mounts: ReadonlyMap<string, string>) {
    const missing = NEEDED.filter((name) => !mounts.has(name));
    if (missing.length > 0) {
      throw new Error(`cgroup controllers ${missing.join(", ")} are not mounted; mount them under /sys/fs/cgroup`);
    }
    this.#mounts = mounts;
    this.#mountPoints = [...new Set([mounts.get("memory") ?? "", ...mounts.values()])];
  }

  /** From the text of /proc/self/mountinfo. */
  static parse(mountinfo: string): V1Hierarchies {
    const mounts = new Map<string, string>();
    for (const line of mountinfo.split("\n")) {
      const [left, right] = line.split(" - ");
      const [type, , options] = right?.split(" ") ?? [];
      const mountPoint = left?.split(" ")[4];
      if (type !== "cgroup" || options === undefined || mountPoint === undefined) continue;
      for (const option of options.split(",")) {
        if (option !== "rw" && option !== "ro") mounts.set(option.replace(/^name=/, ""), mountPoint);
      }
    }
    return new V1Hierarchies(mounts);
  }

  dirs(path: string): string[] {
    return this.#mountPoints.map((mountPoint) => mountPoint + path);
  }

  make(path: string): void {
    for (const dir of this.dirs(path)) {
      mkdirSync(dirname(dir), { recursive: true });
      mkdirSync(dir);
    }
    const cpuset = this.#mounts.get("cpuset");
    if (cpuset !== undefined) inheritCpuset(cpuset, path);
  }

  fill(path: string, limits: Limits): LimitReading[] {
    const readings: LimitReading[] = [];
    const set = (file: string, value: number): void => {
      write(file, String(value));
      readings.push({ file, wanted: String(value), found: readText(file) ?? "" });
    };
    for (const file of this.#memoryLimits(path)) set(file, limits.memoryBytes);
    set(`${this.#dir("cpu", path)}/cpu.cfs_period_us`, CPU_PERIOD_USEC);
    set(`${this.#dir("cpu", path)}/cpu.cfs_quota_us`, limits.cpuQuotaUsec);
    set(`${this.#dir("pids", path)}/pids.max`, limits.pidsMax);
    return readings;
  }

  stats(path: string): CgroupStats {
    const memory = this.#dir("memory", path);
    const pids = this.#dir("pids", path);
    const usedBytes = readNumber(`${memory}/memory.usage_in_bytes`);
    return {
      memoryBytes: Math.max(0, usedBytes - readField(`${memory}/memory.stat`, "total_inactive_file")),
      cpuUsec: Math.floor(readNumber(`${this.#dir("cpuacct", path)}/cpuacct.usage`) / 1000),
      pids: readNumber(`${pids}/pids.current`),
      oomKills: readField(`${memory}/memory.oom_control`, "oom_kill"),
      pidsLimitHits: readField(`${pids}/pids.events`, "max"),
    };
  }

  memory(path: string): CgroupMemory {
    const dir = this.#dir("memory", path);
    const cacheBytes = readFields(`${dir}/memory.stat`, ["total_inactive_file", "total_active_file"]);
    // There only where the kernel counts swap, and then against the limit.
    const swappedBytes = readField(`${dir}/memory.stat`, "total_swap");
    return {
      usedBytes: Math.max(0, readNumber(`${dir}/memory.usage_in_bytes`) - cacheBytes) + swappedBytes,
      oomKills: readField(`${dir}/memory.oom_control`, "oom_kill"),
    };
  }

  async reclaim(path: string): Promise<void> {
    const memory = this.#dir("memory", path);
    // Where the kernel does not count swap, a group would get its limit twice.
    if (!existsSync(`${memory}/memory.memsw.limit_in_bytes`)) return;
    await changeSlowly(`${memory}/memory.force_empty`, "0");
  }

  limitMemory(path: string, memoryBytes: number): boolean {
    const files = this.#memoryLimits(path);
    const [alone = ""] = files;
    // That of both is never less than that of memory alone.
    if (memoryBytes > readNumber(alone)) files.reverse();
    try {
      for (const file of files) change(file, memoryBytes);
    } catch (error) {
      if (hasCode(error, "EBUSY")) return false;
      throw error;
    }
    return true;
  }

  /** The kernel has one limit for both. */
  share(): void {}

  /** Memory's alone, then that of memory and swap together, which is there only where the kernel counts swap. */
  #memoryLimits(path: string): string[] {
    const dir = this.#dir("memory", path);
    const both = `${dir}/memory.memsw.limit_in_bytes`;
    return [`${dir}/memory.limit_in_bytes`, ...(existsSync(both) ? [both] : [])];
  }

  #dir(controller: string, path: string): string {
    return `${this.#mounts.get(controller)}${path}`;
  }
}

/** A new group of this controller holds no processors and no memory nodes, and takes no process until it does. */
function inheritCpuset(mount: string, path: string): void {
  let dir = mount;
  for (const name of path.split("/").slice(1)) {
    const parent = dir;
    dir = `${dir}/${name}`;
    for (const file of ["cpuset.cpus", "cpuset.mems"]) {
      if (readText(`${dir}/${file}`) === "") write(`${dir}/${file}`, readText(`${parent}/${file}`) ?? "");
    }
  }
}
