/** How often a snapshot is started from, as far as its pool needs to know. A value: each use makes another. */
export interface Demand {
  /** Ready clones wanted when it was last used. */
  readonly peak: number;
  readonly usedAtMs: number;
}

/** For so long after its last use a snapshot's pool stays as large as it was then; after that it is halved, again and again. */
const HOLD_MS = 60_000;
const HALVE_EVERY_MS = 60_000;
/** The last clone goes only then: a template that somebody works with starts at once all day. */
const FORGET_MS = 3_600_000;

export const NO_DEMAND: Demand = { peak: 0, usedAtMs: Number.NEGATIVE_INFINITY };

/** How many ready clones are wanted now. */
export function wanted({ peak, usedAtMs }: Demand, nowMs: number): number {
  const idleMs = nowMs - usedAtMs;
  if (peak === 0 || idleMs >= FORGET_MS) return 0;
  if (idleMs < HOLD_MS) return peak;
  return Math.max(1, Math.floor(peak / 2 ** (1 + Math.floor((idleMs - HOLD_MS) / HALVE_EVERY_MS))));
}

/** A ready clone was there. */
export function afterHit(demand: Demand, nowMs: number): Demand {
  return { peak: wanted(demand, nowMs), usedAtMs: nowMs };
}

/** None was there: one more would have been of use. */
export function afterMiss(demand: Demand, nowMs: number, peakMax: number): Demand {
  return { peak: Math.min(peakMax, wanted(demand, nowMs) + 1), usedAtMs: nowMs };
}
