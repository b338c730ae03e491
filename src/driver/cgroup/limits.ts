export const CPU_PERIOD_USEC = 100_000;

/** What one version of cgroups does for a group named by its path below the hierarchies' roots (`/aenv/0/ID`). */
export interface CgroupVersion {
  /** The folders of a group, one in each hierarchy; in the first are all processes of a machine that has started. */
  dirs(path: string): string[];
  /** Makes the group and what is above it. Throws EEXIST when a part of it is there already. */
  make(path: string): void;
  /** Writes the limits and returns what the kernel took them for. */
  fill(path: string, limits: Limits): LimitReading[];
  stats(path: string): CgroupStats;
  /** Of `stats`, what is asked often. */
  memory(path: string): CgroupMemory;
  /** Moves what the group's processes hold out of memory, as far as the host has swap for it. Takes a second for 500 MB. */
  reclaim(path: string): Promise<void>;
  /** Has memory and swap together held to another limit. False: more is in use, file cache that cannot be dropped among it, and the
   *  limit of both together is as before. */
  limitMemory(path: string, memoryBytes: number): boolean;
  /** Has memory and swap together held to this, by what is in swap now. */
  share(path: string, memoryBytes: number): void;
}

export interface Limits {
  readonly memoryBytes: number;
  /** CPU time per 100 ms of wall time. */
  readonly cpuQuotaUsec: number;
  readonly pidsMax: number;
}

export interface LimitReading {
  readonly file: string;
  readonly wanted: string;
  readonly found: string;
}

export interface CgroupMemory {
  /** In use, without file cache; with what of it lies in swap. */
  readonly usedBytes: number;
  /** Processes the kernel has ended for the memory limit. */
  readonly oomKills: number;
}

export interface CgroupStats {
  /** In use, without page cache that the kernel can drop at once. */
  readonly memoryBytes: number;
  readonly cpuUsec: number;
  readonly pids: number;
  /** Processes the kernel has ended for the memory limit. */
  readonly oomKills: number;
  /** How often a process could not be started for the process limit. */
  readonly pidsLimitHits: number;
}
