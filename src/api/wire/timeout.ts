import { z } from "@hono/zod-openapi";
import { AenvError } from "#domain";

export const Seconds = z.int().openapi({ description: "Seconds." });

/** Seconds of the wire as ms, within the server's limit. Errors: invalid (too long). */
export function secondsToMs(seconds: number, maxTimeoutMs: number, field = "timeout"): number {
  const ms = seconds * 1000;
  if (ms > maxTimeoutMs) {
    throw new AenvError("invalid", `Timeout cannot be greater than ${maxTimeoutMs / 3_600_000} hours`, { field });
  }
  return ms;
}

/** As `secondsToMs`, for a life that begins: it must have a length. */
export function lifeToMs(seconds: number, maxTimeoutMs: number): number {
  if (seconds <= 0) throw new AenvError("invalid", "timeout must be greater than 0", { field: "timeout" });
  return secondsToMs(seconds, maxTimeoutMs);
}

/** As `secondsToMs` where leaving it out has a meaning of its own. Errors: invalid (negative, too long). */
export function optionalToMs(seconds: number | null | undefined, maxTimeoutMs: number): number | undefined {
  if (seconds === null || seconds === undefined) return undefined;
  if (seconds < 0) throw new AenvError("invalid", "timeout must not be negative", { field: "timeout" });
  return secondsToMs(seconds, maxTimeoutMs);
}
