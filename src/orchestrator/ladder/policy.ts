import { type Demand, wanted } from "./demand.ts";

/** A machine that stands still and could be missed: a ready clone of a snapshot, or the kept copy of a paused sandbox. */
export interface Resident {
  readonly id: string;
  /** Of a ready clone: those of one pool serve the same starts. Absent: it is a kept copy. */
  readonly poolId?: string;
  readonly bytes: number;
  /** Of a clone: when its snapshot was last started from. Of a copy: when its sandbox was paused. */
  readonly usedAtMs: number;
}

/** A snapshot that was started from, under one network policy. */
export interface Wish {
  readonly poolId: string;
  readonly demand: Demand;
  /** What one clone of it takes. */
  readonly cloneBytes: number;
  /** Clones that are being made. */
  readonly making: number;
  /** False: one could not be made a moment ago. */
  readonly mayGrow: boolean;
}

export interface Room {
  /** The most that all residents may hold. */
  readonly budgetBytes: number;
  /** What the host could give to a new program now. */
  readonly availableBytes: number;
  /** What must stay available: below it residents go; nothing new is made unless twice as much is there. */
  readonly reserveBytes: number;
  /** Network slots that nobody holds, and how many of those are left to requests. */
  readonly slotsFree: number;
  readonly slotsReserved: number;
}

export type Action =
  | { readonly kind: "refill"; readonly poolId: string; readonly count: number }
  | { readonly kind: "evict"; readonly id: string };

export interface Situation {
  readonly nowMs: number;
  readonly room: Room;
  readonly residents: readonly Resident[];
  readonly wishes: readonly Wish[];
}

/**
 * The whole policy of what stands ready: pure, no clock. What was used last stays, as much as fits into memory and slots; the
 * rest goes, and so do clones that nobody is expected to want. A clone that is not there yet competes like one that is, so
 * that copies of long ago make room for templates of today.
 */
export function plan({ nowMs, room, residents, wishes }: Situation): Action[] {
  const stays = new Set<string>();
  const refills = new Map<string, number>();
  const left = roomFor(room, residents, wishes);
  for (const candidate of candidates(nowMs, residents, wishes)) {
    const { bytes } = candidate;
    if (candidate.id === undefined) {
      if (!left.takes(bytes, "new")) continue;
      refills.set(candidate.poolId, (refills.get(candidate.poolId) ?? 0) + 1);
    } else if (left.takes(bytes, "present")) stays.add(candidate.id);
  }
  const evicted = residents.filter(({ id }) => !stays.has(id)).map(({ id }): Action => ({ kind: "evict", id }));
  return [...evicted, ...[...refills].map(([poolId, count]): Action => ({ kind: "refill", poolId, count }))];
}

/** Whom to end first when a request needs what a resident holds. undefined: there is none. */
export function leastUsed(residents: readonly Resident[]): Resident | undefined {
  return [...residents].sort((a, b) => a.usedAtMs - b.usedAtMs)[0];
}

type Candidate =
  | { readonly id: string; readonly bytes: number; readonly usedAtMs: number }
  | { readonly id?: undefined; readonly poolId: string; readonly bytes: number; readonly usedAtMs: number };

/** What should be there, the last used first; of one age, what is there already before what is not. */
function candidates(nowMs: number, residents: readonly Resident[], wishes: readonly Wish[]): Candidate[] {
  const copies = residents.filter(({ poolId }) => poolId === undefined);
  const clones = wishes.flatMap(({ poolId, demand, cloneBytes: bytes, making, mayGrow }) => {
    const ready = residents.filter((resident) => resident.poolId === poolId);
    const count = wanted(demand, nowMs);
    const missing = mayGrow ? Math.max(0, count - ready.length - making) : 0;
    const more = Array.from({ length: missing }, () => ({ poolId, bytes, usedAtMs: demand.usedAtMs }));
    return [...ready.slice(0, count), ...more];
  });
  const isMissing = (candidate: Candidate): number => (candidate.id === undefined ? 1 : 0);
  return [...copies, ...clones].sort((a, b) => b.usedAtMs - a.usedAtMs || isMissing(a) - isMissing(b));
}

/** Clones that are being made have their room already. */
function roomFor(room: Room, residents: readonly Resident[], wishes: readonly Wish[]) {
  const heldBytes = residents.reduce((sum, { bytes }) => sum + bytes, 0);
  const makingBytes = wishes.reduce((sum, { making, cloneBytes }) => sum + making * cloneBytes, 0);
  const spareBytes = room.availableBytes - makingBytes;
  const mostBytes = (reserveBytes: number): number =>
    Math.min(room.budgetBytes - makingBytes, heldBytes + spareBytes - reserveBytes);
  const most = { present: mostBytes(room.reserveBytes), new: mostBytes(2 * room.reserveBytes) };
  const making = wishes.reduce((sum, wish) => sum + wish.making, 0);
  const slots = residents.length + room.slotsFree - room.slotsReserved;
  // A slot that is given back is free only when it has been made anew: what is new waits for that.
  const newSlots = room.slotsFree - room.slotsReserved - making;
  let usedBytes = 0;
  let used = 0;
  let made = 0;
  return {
    takes(bytes: number, kind: "present" | "new"): boolean {
      if (usedBytes + bytes > most[kind] || used + 1 > slots) return false;
      if (kind === "new" && made + 1 > newSlots) return false;
      usedBytes += bytes;
      used += 1;
      if (kind === "new") made += 1;
      return true;
    },
  };
}
