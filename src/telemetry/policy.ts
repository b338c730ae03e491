import { ENTRY_LEVELS, type LogEntry, type LogQuery, type Metric, type SandboxId } from "#domain";

const SECOND_MS = 1000;
const MINUTE_MS = 60 * SECOND_MS;
const HOUR_MS = 60 * MINUTE_MS;

/** Steps of E2B's server: the longer the time asked for, the coarser the answer, which so stays below a thousand points. */
const STEPS: readonly (readonly [belowMs: number, stepMs: number])[] = [
  [6 * HOUR_MS, 30 * SECOND_MS],
  [12 * HOUR_MS, MINUTE_MS],
  [24 * HOUR_MS, 2 * MINUTE_MS],
  [7 * 24 * HOUR_MS, 5 * MINUTE_MS],
  [Number.POSITIVE_INFINITY, 15 * MINUTE_MS],
];

/** Readings of a span, in order, as they are for up to an hour; beyond that one for each step, with the peaks of it and the
 *  time of its first. */
export function thin(metrics: readonly Metric[], spanMs: number): Metric[] {
  if (spanMs < HOUR_MS) return [...metrics];
  const stepMs = STEPS.find(([belowMs]) => spanMs < belowMs)?.[1] ?? MINUTE_MS;
  const steps = Map.groupBy(metrics, ({ atMs }) => Math.floor(atMs / stepMs));
  return [...steps.values()].map((step) => step.reduce(peak));
}

function peak(a: Metric, b: Metric): Metric {
  return {
    atMs: a.atMs,
    cpuCount: Math.max(a.cpuCount, b.cpuCount),
    cpuUsedPct: Math.max(a.cpuUsedPct, b.cpuUsedPct),
    memUsedBytes: Math.max(a.memUsedBytes, b.memUsedBytes),
    memTotalBytes: Math.max(a.memTotalBytes, b.memTotalBytes),
    memCacheBytes: Math.max(a.memCacheBytes, b.memCacheBytes),
    diskUsedBytes: Math.max(a.diskUsedBytes, b.diskUsedBytes),
    diskTotalBytes: Math.max(a.diskTotalBytes, b.diskTotalBytes),
  };
}

export function matches(entry: LogEntry, { minLevel, search }: LogQuery): boolean {
  if (minLevel !== undefined && ENTRY_LEVELS.indexOf(entry.level) < ENTRY_LEVELS.indexOf(minLevel)) return false;
  return search === undefined || entry.message.includes(search);
}

/** A sandbox that has ended and of which something is kept. */
export interface Ended {
  readonly id: SandboxId;
  readonly endedAtMs: number;
  readonly bytes: number;
}

/** E2B's. */
const KEPT_MS = 7 * 24 * HOUR_MS;
const KEPT_BYTES = 512 * 1024 * 1024;
/** Folder, inodes and the ends of blocks. */
const FOLDER_BYTES = 16 * 1024;

/** What one of them takes on the disk. */
export function sizeOf({ bytes }: Ended): number {
  return bytes + FOLDER_BYTES;
}

/** Whether the one that ended first goes: it ended too long ago, or all of them are too much together. */
export function isExpired(oldest: Ended, allBytes: number, nowMs: number): boolean {
  return allBytes > KEPT_BYTES || nowMs - oldest.endedAtMs > KEPT_MS;
}

const ENDED_NAME = /^(\d{1,16})-(\d{1,16})-(i[a-z0-9]{19})$/;

/** The name of its folder says all that is asked of it but its content, so that finding thousands takes one look. */
export function endedName({ id, endedAtMs, bytes }: Ended): string {
  return `${endedAtMs}-${bytes}-${id}`;
}

/** undefined: not such a name. */
export function parseEndedName(name: string): Ended | undefined {
  const match = ENDED_NAME.exec(name);
  return match === null ? undefined : { endedAtMs: Number(match[1]), bytes: Number(match[2]), id: match[3] ?? "" };
}
