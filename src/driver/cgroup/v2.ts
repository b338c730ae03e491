import { existsSync, mkdirSync } from "node:fs";
import { hasCode, isMissing } from "#lib/files";
import { change, changeSlowly, readField, readFields, readLimit, readNumber, readText, write } from "./files.ts";
import {
  type CgroupMemory,
  type CgroupStats,
  type CgroupVersion,
  CPU_PERIOD_USEC,
  type LimitReading,
  type Limits,
} from "./limits.ts";

const CONTROLLERS = "+cpu +memory +pids";

/** Version 2: one hierarchy, in which each level hands its controllers down. */
export class V2Hierarchy implements CgroupVersion {
  readonly #mount: string;

  constructor(mount: string) {
    this.#mount = mount;
  }

  dirs(path: string): string[] {
    return [this.#mount + path];
  }

  make(path: string): void {
    const names = path.split("/").slice(1);
    const last = names.pop();
    let dir = this.#mount;
    write(`${dir}/cgroup.subtree_control`, CONTROLLERS);
    for (const name of names) {
      dir = `${dir}/${name}`;
      mkdirSync(dir, { recursive: true });
      write(`${dir}/cgroup.subtree_control`, CONTROLLERS);
    }
    mkdirSync(`${dir}/${last}`);
  }

  fill(path: string, limits: Limits): LimitReading[] {
    const dir = this.#mount + path;
    const readings: LimitReading[] = [];
    const set = (name: string, value: string): void => {
      const file = `${dir}/${name}`;
      write(file, value);
      readings.push({ file, wanted: value, found: readText(file) ?? "" });
    };
    set("memory.max", String(limits.memoryBytes));
    // There only where the kernel counts swap.
    if (existsSync(`${dir}/memory.swap.max`)) set("memory.swap.max", "0");
    // The kernel is to end the process at fault, not the group.
    set("memory.oom.group", "0");
    set("cpu.max", `${limits.cpuQuotaUsec} ${CPU_PERIOD_USEC}`);
    set("pids.max", String(limits.pidsMax));
    return readings;
  }

  stats(path: string): CgroupStats {
    const dir = this.#mount + path;
    const usedBytes = readNumber(`${dir}/memory.current`);
    return {
      memoryBytes: Math.max(0, usedBytes - readField(`${dir}/memory.stat`, "inactive_file")),
      cpuUsec: readField(`${dir}/cpu.stat`, "usage_usec"),
      pids: readNumber(`${dir}/pids.current`),
      oomKills: readField(`${dir}/memory.events`, "oom_kill"),
      pidsLimitHits: readField(`${dir}/pids.events`, "max"),
    };
  }

  memory(path: string): CgroupMemory {
    const dir = this.#mount + path;
    const cacheBytes = readFields(`${dir}/memory.stat`, ["inactive_file", "active_file"]);
    const swappedBytes = Number(readText(`${dir}/memory.swap.current`) ?? 0);
    return {
      usedBytes: Math.max(0, readNumber(`${dir}/memory.current`) - cacheBytes) + swappedBytes,
      oomKills: readField(`${dir}/memory.events`, "oom_kill"),
    };
  }

  limitMemory(path: string, memoryBytes: number): boolean {
    const dir = this.#mount + path;
    const swappedBytes = Number(readText(`${dir}/memory.swap.current`) ?? 0);
    const maxBytes = memoryShare(memoryBytes, swappedBytes);
    const over = (): number => readNumber(`${dir}/memory.current`) + swappedBytes - memoryBytes;
    if (maxBytes < readLimit(`${dir}/memory.max`)) {
      // A limit below what is in use is taken, and processes are ended for it.
      if (over() > 0) tryReclaim(dir, over());
      if (over() > 0) return false;
    }
    change(`${dir}/memory.max`, maxBytes);
    return true;
  }

  /**
   * The kernel has a limit for each. What is in swap is all that may be there, and the rest of the limit is memory's; what comes
   * back brings its part along. Whoever would take more in between finds room in swap, as much as has come back.
   */
  share(path: string, memoryBytes: number): void {
    const dir = this.#mount + path;
    const swapped = readText(`${dir}/memory.swap.current`);
    if (swapped === undefined) return;
    const swappedBytes = Number(swapped);
    const swapMaxBytes = readLimit(`${dir}/memory.swap.max`);
    if (swapMaxBytes === swappedBytes) return;
    const memory = (): void => change(`${dir}/memory.max`, memoryShare(memoryBytes, swappedBytes));
    const swap = (): void => change(`${dir}/memory.swap.max`, swappedBytes);
    // The one that becomes less comes first, so that both together are never more.
    const [first, second] = swapMaxBytes > swappedBytes ? [swap, memory] : [memory, swap];
    first();
    second();
  }

  /** Swap is closed to the group but for this: what has gone there stays until it is touched. */
  async reclaim(path: string): Promise<void> {
    const dir = this.#mount + path;
    const swapMax = `${dir}/memory.swap.max`;
    if (!existsSync(swapMax)) return;
    const heldBytes = readNumber(`${dir}/memory.current`);
    await changeSlowly(swapMax, "max");
    try {
      await changeSlowly(`${dir}/memory.reclaim`, String(heldBytes));
    } catch (error) {
      ignoreNotAll(error);
    } finally {
      await changeSlowly(swapMax, "0");
    }
  }
}

/** What is left to memory of a limit that it shares with what is in swap. */
function memoryShare(bothBytes: number, swappedBytes: number): number {
  return Math.max(0, bothBytes - swappedBytes);
}

/** Has the kernel drop file cache, and move to swap what may go there, as far as it can. */
function tryReclaim(dir: string, bytes: number): void {
  try {
    change(`${dir}/memory.reclaim`, bytes);
  } catch (error) {
    ignoreNotAll(error);
  }
}

/** For `catch`, where memory is to be given up: never all of it can go, and older kernels cannot be asked. */
function ignoreNotAll(error: unknown): void {
  if (!hasCode(error, "EAGAIN") && !isMissing(error)) throw error;
}
