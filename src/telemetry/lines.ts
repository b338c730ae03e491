import { ENTRY_LEVELS, type EntryLevel, type LogEntry, type Metric } from "#domain";
import type { Line } from "./segments.ts";

/** A line of metrics: time in ms and the seven readings, in this order. */
export function metricLine(metric: Metric): Line {
  const { atMs, cpuCount, cpuUsedPct, memUsedBytes, memTotalBytes, memCacheBytes, diskUsedBytes, diskTotalBytes } =
    metric;
  const values = [
    atMs,
    cpuCount,
    cpuUsedPct,
    memUsedBytes,
    memTotalBytes,
    memCacheBytes,
    diskUsedBytes,
    diskTotalBytes,
  ];
  return { id: atMs, text: JSON.stringify(values) };
}

/** undefined: a crash of the host has damaged it. */
export function parseMetric({ text }: Line): Metric | undefined {
  const values = parseArray(text);
  if (values?.length !== 8 || !values.every((value) => typeof value === "number")) return undefined;
  const [atMs = 0, cpuCount = 0, cpuUsedPct = 0, memUsedBytes = 0, memTotalBytes = 0, memCacheBytes = 0] = values;
  const [diskUsedBytes = 0, diskTotalBytes = 0] = values.slice(6);
  return { atMs, cpuCount, cpuUsedPct, memUsedBytes, memTotalBytes, memCacheBytes, diskUsedBytes, diskTotalBytes };
}

/** A line of a log: id, level, logger, message, fields. */
export function entryLine({ idUs, level, logger, message, fields }: LogEntry): Line {
  return { id: idUs, text: JSON.stringify([idUs, level, logger, message, fields]) };
}

/** undefined: a crash of the host has damaged it. */
export function parseEntry({ id, text }: Line): LogEntry | undefined {
  const [, level, logger, message, fields] = parseArray(text) ?? [];
  if (!isLevel(level) || typeof logger !== "string" || typeof message !== "string") return undefined;
  if (typeof fields !== "object" || fields === null) return undefined;
  return { idUs: id, level, logger, message, fields: fields as Record<string, string> };
}

function isLevel(value: unknown): value is EntryLevel {
  return ENTRY_LEVELS.includes(value as EntryLevel);
}

function parseArray(text: string): unknown[] | undefined {
  try {
    const value: unknown = JSON.parse(text);
    return Array.isArray(value) ? value : undefined;
  } catch {
    return undefined;
  }
}
