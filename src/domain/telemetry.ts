/** One reading of a running sandbox, as its guest sees it. */
export interface Metric {
  readonly atMs: number;
  readonly cpuCount: number;
  /** Of all CPUs together, since the reading before: 100 when all are busy. */
  readonly cpuUsedPct: number;
  readonly memUsedBytes: number;
  readonly memTotalBytes: number;
  /** Page cache, which is not in `memUsedBytes`. */
  readonly memCacheBytes: number;
  readonly diskUsedBytes: number;
  readonly diskTotalBytes: number;
}

/** From the least to the most important. */
export const ENTRY_LEVELS = ["debug", "info", "warn", "error"] as const;
export type EntryLevel = (typeof ENTRY_LEVELS)[number];

/** Something that happened in a sandbox: the agent's doings, a process's start and end, a line of its output. */
export interface LogEntry {
  /** Its time in microseconds since 1970 by the guest's clock, made unique: ids of one sandbox only grow. */
  readonly idUs: number;
  readonly level: EntryLevel;
  /** Who says so: `envd`, `process`. */
  readonly logger: string;
  readonly message: string;
  readonly fields: Readonly<Record<string, string>>;
}

/** Both ends are included; absent: from the first, to the last. */
export interface MetricQuery {
  readonly startMs?: number;
  readonly endMs?: number;
}

export interface LogQuery {
  /** Both ends are included, the last millisecond as a whole. */
  readonly startMs?: number;
  readonly endMs?: number;
  readonly limit: number;
  /** Oldest first, or newest first. */
  readonly direction: "forward" | "backward";
  readonly minLevel?: EntryLevel;
  /** What the message must contain, letter by letter. */
  readonly search?: string;
}
