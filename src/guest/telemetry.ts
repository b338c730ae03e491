import { AenvError, ENTRY_LEVELS, type EntryLevel, type LogEntry, type Metric } from "#domain";

/** A reading without its time: the node's clock tells that. */
export type Reading = Omit<Metric, "atMs">;

export interface TelemetryAnswer {
  readonly reading?: Reading;
  /** With growing ids. */
  readonly entries: readonly LogEntry[];
  /** There are more; ask again. */
  readonly more: boolean;
}

const NAME_MAX_CHARS = 128;
const TEXT_MAX_CHARS = 8_192;
const FIELDS_MAX = 32;

/** Whoever is root inside can answer in the agent's place: what is no reading or no entry is an error, what is too long is
 *  cut. Errors: internal. */
export function parseTelemetry(body: string): TelemetryAnswer {
  const answer = jsonOf(body);
  if (!isObject(answer) || !Array.isArray(answer.entries)) throw malformed();
  const entries = answer.entries.map(parseEntry);
  if (entries.some(({ idUs }, at) => at > 0 && idUs <= (entries[at - 1]?.idUs ?? 0))) throw malformed();
  return {
    ...(answer.metrics !== undefined && { reading: parseReading(answer.metrics) }),
    entries,
    more: answer.more === true,
  };
}

function parseReading(value: unknown): Reading {
  if (!isObject(value)) throw malformed();
  const number = (name: string): number => {
    const read = value[name];
    if (typeof read !== "number" || !(read >= 0 && read <= Number.MAX_SAFE_INTEGER)) throw malformed();
    return read;
  };
  return {
    cpuCount: number("cpu_count"),
    cpuUsedPct: number("cpu_used_pct"),
    memUsedBytes: number("mem_used"),
    memTotalBytes: number("mem_total"),
    memCacheBytes: number("mem_cache"),
    diskUsedBytes: number("disk_used"),
    diskTotalBytes: number("disk_total"),
  };
}

/** `[id, level, logger, message, fields]`. */
function parseEntry(value: unknown): LogEntry {
  if (!Array.isArray(value)) throw malformed();
  const [idUs, level, logger, message, fields] = value as readonly unknown[];
  if (typeof idUs !== "number" || !Number.isSafeInteger(idUs) || idUs <= 0) throw malformed();
  if (!isLevel(level) || typeof logger !== "string" || typeof message !== "string") throw malformed();
  if (!isObject(fields)) throw malformed();
  const short = Object.entries(fields)
    .slice(0, FIELDS_MAX)
    .map(([name, text]) => [name.slice(0, NAME_MAX_CHARS), String(text).slice(0, TEXT_MAX_CHARS)]);
  return {
    idUs,
    level,
    logger: logger.slice(0, NAME_MAX_CHARS),
    message: message.slice(0, TEXT_MAX_CHARS),
    fields: Object.fromEntries(short),
  };
}

function isLevel(value: unknown): value is EntryLevel {
  return ENTRY_LEVELS.includes(value as EntryLevel);
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null;
}

function jsonOf(body: string): unknown {
  try {
    return JSON.parse(body);
  } catch {
    throw malformed();
  }
}

function malformed(): AenvError {
  return new AenvError("internal", "the sandbox's agent answered /telemetry with what is none");
}
