import { setTimeout as sleep } from "node:timers/promises";
import type { ApiClient } from "./api.ts";

const EVERY_MS = 60_000;
/** What a sandbox that somebody uses is left at least; must outlast the wait between two prolongations. */
const MIN_S = 120;
/** The server prolongs by no more at a time. */
export const REFRESH_MAX_S = 3600;

/** Prolongs the sandbox's life to `durationS` from each minute on, until `signal` ends it. Never throws. */
export async function keepAlive(api: ApiClient, id: string, durationS: number, signal: AbortSignal): Promise<void> {
  const boundedS = Math.min(REFRESH_MAX_S, Math.max(MIN_S, durationS));
  while (!signal.aborted) {
    // A refusal means that the sandbox is paused or gone, which whoever uses it notices too.
    await api.refresh(id, boundedS, signal).catch(() => {});
    await sleep(EVERY_MS, undefined, { signal }).catch(() => {});
  }
}
