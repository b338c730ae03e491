import { setImmediate as nextTurn, setTimeout as sleep } from "node:timers/promises";
import { AenvError } from "#domain";
import type { MachineStats } from "#driver";
import { fault } from "#lib/fault";
import { Semaphore } from "#lib/mutex";
import { Background } from "../background.ts";
import type { Context } from "../context.ts";
import type { Entry, Incarnation } from "../entry.ts";
import { routeOf } from "../run.ts";
import { type IdleWindow, look } from "./idle.ts";
import { Reclaimer } from "./reclaimer.ts";

/** Readings in the time after which a sandbox counts as idle. */
const LOOKS = 6;
/** How long a frozen one stands still until it is let go on for a moment, by the time after which it counts as idle. */
const FROZEN_TIMES = 2;
/** How long that is, and no longer than from one reading to the next. */
const MOMENT_MS = 300;
/** Right after its memory was taken: programs that poll a few times a second do so at least once. */
const MOMENT_FROM_SWAP_MS = 1_000;
/** A timer may fire so much early, by the clock that a moment is measured with. */
const TIMER_EARLY_MS = 2;
/** A reading takes a tenth of a millisecond, in which nothing else happens. */
const LOOKS_A_TURN = 16;
/** Each asks the edge and drains its logs, beside what others want of both. */
const FREEZES_AT_ONCE = 16;
/** Enough for two thousand to have theirs each minute; more at a time would be a load for those who are awake. */
const MOMENTS_AT_ONCE = 16;
/** Forwarders that say nothing for so long leave the sandbox awake. */
const OFFER_WITHIN_MS = 2_000;

interface Watched {
  window: IdleWindow;
  isBeingLookedAt: boolean;
  frozenAtMs: number;
  /** What it needs to be awake: what came back in the moment after its memory was taken. 0: not known. */
  neededBytes: number;
  /** Its memory was taken but for so much, and its next moment says what it needs to be awake. */
  leftBytes: number | undefined;
}

/**
 * Freezes running sandboxes that nobody uses and that do nothing, and thaws them for whoever comes. A frozen one goes on for a
 * moment now and then, so that what waits in it for a time comes late rather than never; one that has something to do then stays
 * awake.
 */
export class Sleeper {
  readonly #context: Context;
  readonly #watched = new WeakMap<Incarnation, Watched>();
  readonly #running: Background;
  readonly #afterMs: number;
  readonly #reclaimer: Reclaimer | undefined;
  readonly #timer: NodeJS.Timeout | undefined;
  readonly #freezing = new Semaphore(FREEZES_AT_ONCE);
  readonly #momentary = new Semaphore(MOMENTS_AT_ONCE);
  readonly #closing = new AbortController();
  #isInRound = false;

  constructor(context: Context) {
    this.#context = context;
    this.#running = new Background(context.logger);
    this.#afterMs = context.idleAfterMs ?? 0;
    const { swap, logger } = context;
    this.#reclaimer = swap && new Reclaimer({ swap, logger, background: this.#running, signal: this.#closing.signal });
    if (this.#afterMs > 0) {
      const round = () => void this.#running.run("looking for idle sandboxes", () => this.#round());
      this.#timer = setInterval(round, this.#afterMs / LOOKS);
    }
  }

  /** Those that are frozen stay so: the next server thaws them. */
  async close(): Promise<void> {
    this.#closing.abort();
    clearInterval(this.#timer);
    await this.#running.close();
  }

  /** Lets a frozen sandbox go on. Precondition: it is frozen, in this very turn of the event loop. Errors: unavailable. */
  thaw(entry: Entry): Promise<void> {
    const watched = entry.incarnation && this.#watched.get(entry.incarnation);
    // What comes back now is what somebody uses, not what it needs to be awake.
    if (watched !== undefined) watched.leftBytes = undefined;
    return this.#thaw(entry, { lengthMs: this.#afterMs, isFromSwap: false });
  }

  get #isClosed(): boolean {
    return this.#closing.signal.aborted;
  }

  /** All of them, a few in each turn of the event loop: a reading is taken at once, and there may be thousands. */
  async #round(): Promise<void> {
    if (this.#isInRound) return;
    this.#isInRound = true;
    try {
      for (const [at, entry] of this.#context.entries.all().entries()) {
        if (at % LOOKS_A_TURN === LOOKS_A_TURN - 1) await nextTurn();
        if (this.#isClosed) return;
        this.#visit(entry);
      }
    } finally {
      this.#isInRound = false;
    }
  }

  #visit(entry: Entry): void {
    const { incarnation } = entry;
    if (incarnation === undefined || entry.operation !== undefined) return;
    const nowMs = performance.now();
    const watched = this.#of(incarnation, nowMs);
    if (entry.state === "running") {
      this.#attend(watched, `looking whether ${entry.id} is idle`, () => this.#look(entry, incarnation, watched));
    } else if (entry.state === "frozen" && nowMs - watched.frozenAtMs >= FROZEN_TIMES * this.#afterMs) {
      this.#moment(entry, incarnation, watched);
    }
  }

  /** Lets a frozen one go on for a moment, when it is its turn; one that does something then stays awake. */
  #moment(entry: Entry, incarnation: Incarnation, watched: Watched): void {
    this.#attend(watched, `a moment for ${entry.id}`, () =>
      this.#momentary.run(() => this.#goOn(entry, incarnation, watched)),
    );
  }

  /** Begins something in the background, unless something is under way with that machine. */
  #attend(watched: Watched, what: string, work: () => Promise<unknown>): void {
    if (watched.isBeingLookedAt) return;
    watched.isBeingLookedAt = true;
    void this.#running.run(what, async () => {
      try {
        await work();
      } finally {
        watched.isBeingLookedAt = false;
      }
    });
  }

  async #goOn(entry: Entry, incarnation: Incarnation, watched: Watched): Promise<void> {
    if (this.#isClosed || entry.frozen !== incarnation) return;
    if (entry.state !== "frozen" || entry.operation !== undefined) return;
    const { leftBytes } = watched;
    const lengthMs = Math.min(leftBytes === undefined ? MOMENT_MS : MOMENT_FROM_SWAP_MS, this.#afterMs / LOOKS);
    this.#context.collector.putOff(incarnation);
    await this.#thaw(entry, { lengthMs, isFromSwap: leftBytes !== undefined });
    await sleep(lengthMs + TIMER_EARLY_MS, undefined, { signal: this.#closing.signal }).catch(() => {});
    if (entry.incarnation !== incarnation) return;
    if (leftBytes !== undefined) {
      const stats = await statsOf(incarnation);
      if (stats !== undefined) watched.neededBytes = Math.max(0, stats.memoryBytes - leftBytes);
    }
    const didNothing = await this.#look(entry, incarnation, watched);
    // What it needs for what it did is not known, unless it has just been measured.
    if (leftBytes === undefined && !didNothing) watched.neededBytes = 0;
    watched.leftBytes = undefined;
  }

  /** Freezes one that did nothing, unless somebody wants it. False: it did something. */
  async #look(entry: Entry, incarnation: Incarnation, watched: Watched): Promise<boolean> {
    if (!(await this.#isIdle(incarnation, watched))) return false;
    const mustWait = !this.#freezing.isFree;
    return this.#freezing.run(async () => {
      // It may have done something until its turn came.
      if (mustWait && !(await this.#isIdle(incarnation, watched))) return false;
      if (this.#isClosed || entry.incarnation !== incarnation) return true;
      if (entry.state !== "running" || entry.operation !== undefined) return true;
      await this.#context.entries.begin(entry, () => this.#freeze(entry, incarnation, watched));
      if (entry.state === "running") {
        watched.window = { ...watched.window, sinceMs: performance.now(), lengthMs: this.#afterMs };
      }
      return true;
    });
  }

  async #isIdle(incarnation: Incarnation, watched: Watched): Promise<boolean> {
    const cpuUsec = await usedOf(incarnation);
    const seen = look(watched.window, { nowMs: performance.now(), cpuUsec, fullMs: this.#afterMs });
    watched.window = seen.window;
    return seen.isIdle;
  }

  /** Whoever uses it, or wants to meanwhile, keeps it awake. */
  async #freeze(entry: Entry, incarnation: Incarnation, watched: Watched): Promise<void> {
    const { collector, routes, logger } = this.#context;
    entry.update({ state: "freezing" });
    try {
      await collector.drainToRest(entry, incarnation);
      if (!(await routes.offerRest(routeOf(entry, { restAfterMs: this.#afterMs }), OFFER_WITHIN_MS))) {
        return this.#awake(entry);
      }
      // Nobody gets in any more.
      await collector.drainNews(entry, incarnation);
      await fault("freeze.offered", incarnation.machine.id);
      await incarnation.machine.pause();
      await fault("freeze.frozen", incarnation.machine.id);
      watched.frozenAtMs = performance.now();
      entry.frozen = incarnation;
      entry.update({ state: "frozen" });
      this.#offerMemory(entry, incarnation, watched);
      logger.debug("idle sandbox frozen", { sandboxId: entry.id, generation: entry.sandbox.generation });
    } catch (error) {
      logger.warn("an idle sandbox could not be frozen and goes on", { sandboxId: entry.id, error });
      this.#awake(entry);
    }
  }

  /** After that it goes on for a moment at once: what it needs to be awake comes back while nobody waits for it, and stays. */
  #offerMemory(entry: Entry, incarnation: Incarnation, watched: Watched): void {
    // This ends that moment: what came back is to stay.
    if (watched.leftBytes !== undefined) return;
    this.#reclaimer?.offer(entry, {
      neededBytes: watched.neededBytes,
      onTaken: (leftBytes) => {
        watched.leftBytes = leftBytes;
        this.#moment(entry, incarnation, watched);
      },
    });
  }

  /** It may be frozen again after doing nothing in such a window. */
  #thaw(entry: Entry, kind: Pick<IdleWindow, "lengthMs" | "isFromSwap">): Promise<void> {
    const { entries, logger } = this.#context;
    const { incarnation } = entry;
    if (incarnation === undefined) throw new AenvError("internal", `frozen sandbox ${entry.id} has no machine`);
    return entries.begin(entry, async () => {
      entry.update({ state: "thawing" });
      try {
        await fault("thaw.begun", incarnation.machine.id);
        await incarnation.machine.resume();
        await fault("thaw.awake", incarnation.machine.id);
      } catch (cause) {
        entry.update({ state: "frozen" });
        throw new AenvError("unavailable", `Sandbox "${entry.id}" stands still and could not be woken`, { cause });
      }
      const nowMs = performance.now();
      const cpuUsec = await usedOf(incarnation);
      this.#of(incarnation, nowMs).window = { ...kind, sinceMs: nowMs, cpuUsec };
      this.#awake(entry);
      logger.debug("sandbox thawed", { sandboxId: entry.id, generation: entry.sandbox.generation });
    });
  }

  #awake(entry: Entry): void {
    entry.frozen = undefined;
    entry.update({ state: "running" });
    this.#context.routes.set(routeOf(entry));
  }

  #of(incarnation: Incarnation, nowMs: number): Watched {
    const known = this.#watched.get(incarnation);
    if (known !== undefined) return known;
    const watched: Watched = {
      // Nothing is known of what it has used: the first reading begins a window.
      window: { sinceMs: nowMs, cpuUsec: Number.NEGATIVE_INFINITY, lengthMs: this.#afterMs, isFromSwap: false },
      isBeingLookedAt: false,
      frozenAtMs: 0,
      neededBytes: 0,
      leftBytes: undefined,
    };
    this.#watched.set(incarnation, watched);
    return watched;
  }
}

/** Without a bound for a machine that has just ended: nothing is begun with it. */
async function usedOf(incarnation: Incarnation): Promise<number> {
  return (await statsOf(incarnation))?.cpuUsec ?? Number.POSITIVE_INFINITY;
}

/** undefined: the machine has just ended. */
function statsOf({ machine }: Incarnation): Promise<MachineStats | undefined> {
  return machine.stats().catch(() => undefined);
}
