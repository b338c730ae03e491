/** What a machine may use of a processor and still count as idle: its agent is asked for metrics, its runtime has timers. */
const IDLE_SHARE = 0.01;
/** Beside that, once in a window: whoever did no more than this did nothing. What comes back from swap costs as much again. */
const IDLE_USEC = 20_000;
const IDLE_FROM_SWAP_USEC = 40_000;

/** A time in which a machine is watched for doing nothing. */
export interface IdleWindow {
  readonly sinceMs: number;
  /** What it had used of a processor by then. */
  readonly cpuUsec: number;
  /** It is idle when it does nothing for so long. */
  readonly lengthMs: number;
  /** Its memory was taken right before: all that it touches comes back from swap. */
  readonly isFromSwap: boolean;
}

/** Pure: what a reading means. `window`: the one to go on with; whoever did something is watched anew, for `fullMs`. */
export function look(
  window: IdleWindow,
  { nowMs, cpuUsec, fullMs }: { readonly nowMs: number; readonly cpuUsec: number; readonly fullMs: number },
): { readonly window: IdleWindow; readonly isIdle: boolean } {
  const elapsedMs = nowMs - window.sinceMs;
  const onceUsec = window.isFromSwap ? IDLE_FROM_SWAP_USEC : IDLE_USEC;
  if (cpuUsec - window.cpuUsec > onceUsec + elapsedMs * 1000 * IDLE_SHARE) {
    return { window: { sinceMs: nowMs, cpuUsec, lengthMs: fullMs, isFromSwap: false }, isIdle: false };
  }
  return { window, isIdle: elapsedMs >= window.lengthMs };
}
