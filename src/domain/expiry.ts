import type { Sandbox, TimeoutAction } from "./sandbox.ts";

/** What becomes of a sandbox by time alone, and when. */
export interface Expiry {
  readonly atMs: number;
  readonly action: TimeoutAction;
}

/**
 * When the time of a sandbox is up as it is now: pure, no clock. One that runs has its own timeout; a paused one is kept for
 * `pausedRetentionMs` after its pause (undefined: for ever). undefined: no time ends it. While an operation is under way none does:
 * what it leads to is looked at anew, so one that is being resumed is not removed for the time it was paused.
 */
export function expiryOf(
  { state, endAtMs, spec }: Pick<Sandbox, "state" | "endAtMs" | "spec">,
  pausedRetentionMs: number | undefined,
): Expiry | undefined {
  switch (state) {
    case "running":
    case "frozen":
      return { atMs: endAtMs, action: spec.onTimeout };
    case "paused":
      return pausedRetentionMs === undefined ? undefined : { atMs: endAtMs + pausedRetentionMs, action: "kill" };
    default:
      return undefined;
  }
}
