import { writeSync } from "node:fs";

/** Structured logs: one JSON object a line on stderr. Loggers are handed down; keys are a closed list. */
export type LogLevel = "debug" | "info" | "warn" | "error";

export interface LogFields {
  readonly sandboxId?: string;
  readonly generation?: number;
  readonly templateId?: string;
  readonly buildId?: string;
  readonly requestId?: string;
  readonly machineId?: string;
  readonly slot?: number;
  readonly method?: string;
  readonly path?: string;
  readonly status?: number;
  readonly durationMs?: number;
  /** name → ms since the start of the operation. */
  readonly steps?: Readonly<Record<string, number>>;
  readonly reason?: string;
  readonly error?: unknown;
  readonly count?: number;
  readonly pid?: number;
  readonly address?: string;
  readonly version?: string;
  readonly driver?: string;
}

export interface Logger {
  debug(message: string, fields?: LogFields): void;
  info(message: string, fields?: LogFields): void;
  warn(message: string, fields?: LogFields): void;
  error(message: string, fields?: LogFields): void;
  child(fields: LogFields): Logger;
}

const STDERR = 2;
const ORDER: Record<LogLevel, number> = { debug: 0, info: 1, warn: 2, error: 3 };

export function createLogger(level: LogLevel, write: (line: string) => void, base: LogFields = {}): Logger {
  const emit = (at: LogLevel, message: string, fields?: LogFields): void => {
    if (ORDER[at] < ORDER[level]) return;
    const all: Record<string, unknown> = { time: new Date().toISOString(), level: at, message, ...base, ...fields };
    if (all.error !== undefined) all.error = describeError(all.error);
    write(`${JSON.stringify(all)}\n`);
  };
  return {
    debug: (message, fields) => emit("debug", message, fields),
    info: (message, fields) => emit("info", message, fields),
    warn: (message, fields) => emit("warn", message, fields),
    error: (message, fields) => emit("error", message, fields),
    child: (fields) => createLogger(level, write, { ...base, ...fields }),
  };
}

/** For servers: what a full disk does not take is lost, and neither ends the process nor the log. */
export function writeStderr(line: string): void {
  try {
    writeSync(STDERR, line);
  } catch {
    // There is nowhere left to say it. A stream would be closed by its first error, and end the process.
  }
}

export const silentLogger: Logger = createLogger("error", () => {});

/** Message and causes in one line; the stack of what is not one of our own refusals. */
export function describeError(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  let text = error.name === "AenvError" ? error.message : (error.stack ?? error.message);
  if (error.cause !== undefined) text += ` | caused by: ${describeError(error.cause)}`;
  if (error instanceof AggregateError) text += ` | ${error.errors.map(describeError).join(" | ")}`;
  return text;
}
