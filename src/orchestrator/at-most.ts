import { setTimeout as sleep } from "node:timers/promises";

/** Returns when `work` is done, or after so long: then it goes on, as its owner's. Rejects as `work` does meanwhile. */
export async function atMost(waitMs: number, work: Promise<unknown>): Promise<void> {
  const over = new AbortController();
  try {
    await Promise.race([work, sleep(waitMs, undefined, { signal: over.signal }).catch(() => {})]);
  } finally {
    over.abort();
  }
}
