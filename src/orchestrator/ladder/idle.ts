/** What a machine may use of a processor and still count as idle: its agent is asked for metrics, its runtime has timers. */
const IDLE_SHARE = 0.01;
/** Beside that, once in a window: whoever did no more than this did nothing. */
const IDLE_USEC = 20_000;

/** A time in which a machine is watched for doing nothing. */
export interface IdleWindow {
  readonly sinceMs: number;
  /** What it had used of a processor by then. */
  readonly cpuUsec: number;
  /** It is idle when it does nothing for so long. */
  readonly lengthMs: number;
}

/** Pure: what a reading means. `window`: the one to go on with; whoever did something is watched anew, for `fullMs`. */
export function look(
  window: IdleWindow,
  { nowMs, cpuUsec, fullMs }: { readonly nowMs: number; readonly cpuUsec: number; readonly fullMs: number },
): { readonly window: IdleWindow; readonly isIdle: boolean } {
  const elapsedMs = nowMs - window.sinceMs;
  const idleUsec = IDLE_USEC + elapsedMs * 1000 * IDLE_SHARE;
  if (cpuUsec - window.cpuUsec > idleUsec) {
    return { window: { sinceMs: nowMs, cpuUsec, lengthMs: fullMs }, isIdle: false };
  }
  return { window, isIdle: elapsedMs >= window.lengthMs };
}
