import { z } from "@hono/zod-openapi";
import { AenvError, ENTRY_LEVELS, type LogEntry, type Metric, type MetricQuery } from "#domain";

const LIMIT_DEFAULT = 1000;
const INT32_MAX = 2 ** 31 - 1;
const BATCH_MAX = 100;

const UnixSeconds = z.coerce.number().int().min(0).optional();
const UnixMs = z.coerce.number().int().min(0).optional();

export const MetricsQuery = z.object({
  start: UnixSeconds.openapi({ description: "Unix seconds; from the first reading when left out." }),
  end: UnixSeconds.openapi({ description: "Unix seconds; to the last reading when left out." }),
});

export const BatchMetricsQuery = z.object({
  sandbox_ids: z
    .union([z.string(), z.array(z.string())])
    .openapi({ description: `Ids, with commas between them; up to ${BATCH_MAX}.` }),
});

export const LogsQuery = z.object({
  start: UnixMs.openapi({ description: "Unix milliseconds; from the first entry when left out." }),
  limit: z.coerce.number().int().min(0).max(INT32_MAX).default(LIMIT_DEFAULT),
});

export const LogsQueryV2 = z.object({
  cursor: UnixMs.openapi({ description: "Unix milliseconds to begin at, in the direction; included." }),
  limit: z.coerce.number().int().min(0).max(LIMIT_DEFAULT).default(LIMIT_DEFAULT),
  direction: z.enum(["forward", "backward"]).default("backward").openapi({ description: "Oldest or newest first." }),
  level: z.enum(ENTRY_LEVELS).optional().openapi({ description: "The least important that is shown." }),
  search: z.string().max(256).optional().openapi({ description: "What the message contains, letter by letter." }),
});

export const SandboxMetric = z
  .object({
    timestamp: z.iso.datetime(),
    timestampUnix: z.int().openapi({ description: "In seconds." }),
    cpuCount: z.number(),
    cpuUsedPct: z.number().openapi({ description: "Of all processors together: 100 when all are busy." }),
    memUsed: z.int().openapi({ description: "Bytes, without the page cache." }),
    memTotal: z.int(),
    memCache: z.int(),
    diskUsed: z.int(),
    diskTotal: z.int(),
  })
  .openapi("SandboxMetric");

export const SandboxesWithMetrics = z
  .object({ sandboxes: z.record(z.string(), SandboxMetric) })
  .openapi("SandboxesWithMetrics");

const SandboxLogEntry = z
  .object({
    timestamp: z.iso.datetime(),
    level: z.enum(ENTRY_LEVELS),
    message: z.string(),
    fields: z.record(z.string(), z.string()),
  })
  .openapi("SandboxLogEntry");

export const SandboxLogs = z
  .object({
    logs: z.array(
      z.object({
        timestamp: z.iso.datetime(),
        line: z.string().openapi({ description: "The entry as JSON: level, logger, message, and its fields." }),
      }),
    ),
    logEntries: z.array(SandboxLogEntry),
  })
  .openapi("SandboxLogs");

export const SandboxLogsV2 = z.object({ logs: z.array(SandboxLogEntry) }).openapi("SandboxLogsV2Response");

/** Whole seconds, both included. Errors: invalid (`start`). */
export function toMetricQuery({ start, end }: z.output<typeof MetricsQuery>): MetricQuery {
  if (start !== undefined && end !== undefined && start > end) {
    throw new AenvError("invalid", "Invalid time range for metrics: start is after end", { field: "start" });
  }
  return {
    ...(start !== undefined && { startMs: start * 1000 }),
    ...(end !== undefined && { endMs: end * 1000 + 999 }),
  };
}

/** Errors: invalid (`sandbox_ids`). */
export function toIds({ sandbox_ids }: z.output<typeof BatchMetricsQuery>): string[] {
  const ids = [sandbox_ids].flat().flatMap((text) => text.split(",").filter((id) => id !== ""));
  if (ids.length > BATCH_MAX) {
    throw new AenvError("invalid", `Too many sandboxes requested, maximum is ${BATCH_MAX}`, { field: "sandbox_ids" });
  }
  // Older clients append `-<clientID>`.
  return ids.map((id) => id.split("-", 1)[0] ?? "");
}

export function toSandboxMetric(metric: Metric): z.output<typeof SandboxMetric> {
  return {
    timestamp: new Date(metric.atMs).toISOString(),
    timestampUnix: Math.floor(metric.atMs / 1000),
    cpuCount: metric.cpuCount,
    cpuUsedPct: metric.cpuUsedPct,
    memUsed: metric.memUsedBytes,
    memTotal: metric.memTotalBytes,
    memCache: metric.memCacheBytes,
    diskUsed: metric.diskUsedBytes,
    diskTotal: metric.diskTotalBytes,
  };
}

export function toLogEntry({ idUs, level, logger, message, fields }: LogEntry): z.output<typeof SandboxLogEntry> {
  return { timestamp: timestampOf(idUs), level, message, fields: { logger, ...fields } };
}

/** Both shapes of the first version. E2B's CLI parses the line and wants `level` and `logger` in it. */
export function toLogs(entries: readonly LogEntry[]): z.output<typeof SandboxLogs> {
  return {
    logs: entries.map(({ idUs, level, logger, message, fields }) => ({
      timestamp: timestampOf(idUs),
      line: JSON.stringify({ ...fields, level, logger, message }),
    })),
    logEntries: entries.map(toLogEntry),
  };
}

/**
 * A page of what was asked with one more than `limit`. E2B's CLI follows a log by asking from the millisecond behind the last
 * entry on: so a page that is cut ends with a whole millisecond, where it has one.
 */
export function cutPage(entries: readonly LogEntry[], limit: number): readonly LogEntry[] {
  const beyond = entries[limit];
  if (beyond === undefined) return entries;
  const cutMs = millisecondOf(beyond);
  const whole = entries.slice(0, limit).findLastIndex((entry) => millisecondOf(entry) !== cutMs) + 1;
  return entries.slice(0, whole === 0 ? limit : whole);
}

function millisecondOf({ idUs }: LogEntry): number {
  return Math.floor(idUs / 1000);
}

/** To the microsecond, so that entries of one moment keep their order. */
function timestampOf(idUs: number): string {
  const toMs = new Date(Math.floor(idUs / 1000)).toISOString();
  return toMs.replace("Z", `${String(idUs % 1000).padStart(3, "0")}Z`);
}
