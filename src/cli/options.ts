import type { Option } from "./command.ts";

/** How long a sandbox lives when nothing else is said, as long as with E2B's clients. */
export const DEFAULT_TIMEOUT_S = 300;

export function timeoutOption(summary: string): Option {
  return { flags: "-t, --timeout <seconds>", summary, kind: "number", min: 1, max: 999_999_999 };
}
