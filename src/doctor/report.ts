import type { Check, CheckStatus } from "./check.ts";

const MARKS: Readonly<Record<CheckStatus, string>> = { ok: "ok  ", warn: "warn", fail: "FAIL" };

/** A table for people: one line a check, what to do below those that are not ok. */
export function formatChecks(checks: readonly Check[]): string {
  const width = Math.max(...checks.map(({ id }) => id.length));
  const lines = checks.flatMap(({ id, status, found, fix }) => [
    `${MARKS[status]}  ${id.padEnd(width)}  ${found}`,
    ...(fix === undefined ? [] : [`      ${" ".repeat(width)}  → ${fix}`]),
  ]);
  return `${lines.join("\n")}\n`;
}

/** 0: sandboxes can run here, 1: they cannot. */
export function exitCodeFor(checks: readonly Check[]): 0 | 1 {
  return checks.some(({ status }) => status === "fail") ? 1 : 0;
}
