import { readFileSync } from "node:fs";
import type { Server } from "node:http";
import type { Logger } from "#lib/log";

/** Where /proc does not tell, or there is no limit. */
const DEFAULT_OPEN_FILES = 16_384;
/** For listening, aenvd, logs and idle connections into sandboxes. */
const RESERVED_FILES = 2048;
const LOG_EVERY_MS = 10_000;

/**
 * How many clients may be connected at once, given the text of /proc/PID/limits: each takes one open file of the edge, and
 * one more into its sandbox.
 */
export function connectionLimit(limits: string): number {
  const soft = Number(/^Max open files\s+(\d+)/m.exec(limits)?.[1] ?? DEFAULT_OPEN_FILES);
  return Math.max(1, Math.floor((soft - Math.min(RESERVED_FILES, soft / 4)) / 2));
}

export function ownLimits(): string {
  try {
    return readFileSync("/proc/self/limits", "utf8");
  } catch {
    return "";
  }
}

/** Clients beyond the limit are cut off at once; the log says so, not once for each. */
export function limitConnections(server: Server, max: number, logger: Logger): void {
  server.maxConnections = max;
  let dropped = 0;
  let loggedAtMs = Number.NEGATIVE_INFINITY;
  server.on("drop", () => {
    dropped += 1;
    const nowMs = performance.now();
    if (nowMs - loggedAtMs < LOG_EVERY_MS) return;
    const hint = "a higher limit of open files (ulimit -n) allows more";
    logger.error(`all ${max} connections are in use: new clients are cut off; ${hint}`, { count: dropped });
    loggedAtMs = nowMs;
    dropped = 0;
  });
}
