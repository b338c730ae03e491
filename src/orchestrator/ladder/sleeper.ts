import { setImmediate as nextTurn } from "node:timers/promises";
import { AenvError } from "#domain";
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
/** How long a frozen one stands still until it is let go on for a moment, and how long that is, by the time after which it counts
 *  as idle: a minute and a third of a second for half a minute. */
const FROZEN_TIMES = 2;
const MOMENT_SHARE = 1 / 100;
/** A reading takes a tenth of a millisecond, in which nothing else happens. */
const LOOKS_A_TURN = 16;
/** Each asks the edge and drains its logs, beside what others want of both. */
const FREEZES_AT_ONCE = 16;
/** Forwarders that say nothing for so long leave the sandbox awake. */
const OFFER_WITHIN_MS = 2_000;

interface Watched {
  window: IdleWindow;
  isBeingLookedAt: boolean;
  frozenAtMs: number;
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
  #isInRound = false;
  #isClosed = false;

  constructor(context: Context) {
    this.#context = context;
    this.#running = new Background(context.logger);
    this.#afterMs = context.idleAfterMs ?? 0;
    const { swap, logger } = context;
    this.#reclaimer = swap && new Reclaimer({ swap, logger, background: this.#running });
    if (this.#afterMs > 0) {
      const round = () => void this.#running.run("looking for idle sandboxes", () => this.#round());
      this.#timer = setInterval(round, this.#afterMs / LOOKS);
    }
  }

  /** Those that are frozen stay so: the next server thaws them. */
  async close(): Promise<void> {
    this.#isClosed = true;
    clearInterval(this.#timer);
    await this.#running.close();
  }

  /** Lets a frozen sandbox go on. Precondition: it is frozen, in this very turn of the event loop. Errors: unavailable. */
  thaw(entry: Entry): Promise<void> {
    return this.#thaw(entry, this.#afterMs);
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
    if (entry.state === "running" && !watched.isBeingLookedAt) {
      watched.isBeingLookedAt = true;
      void this.#running.run(`looking whether ${entry.id} is idle`, () =>
        this.#look(entry, incarnation, watched).finally(() => {
          watched.isBeingLookedAt = false;
        }),
      );
    } else if (entry.state === "frozen" && nowMs - watched.frozenAtMs >= FROZEN_TIMES * this.#afterMs) {
      void this.#running.run(`a moment for ${entry.id}`, () => this.#thaw(entry, this.#afterMs * MOMENT_SHARE));
    }
  }

  async #look(entry: Entry, incarnation: Incarnation, watched: Watched): Promise<void> {
    if (!(await this.#isIdle(incarnation, watched))) return;
    await this.#freezing.run(async () => {
      // It may have had to wait for its turn, and have done something meanwhile.
      if (!(await this.#isIdle(incarnation, watched))) return;
      if (this.#isClosed || entry.incarnation !== incarnation) return;
      if (entry.state !== "running" || entry.operation !== undefined) return;
      await this.#context.entries.begin(entry, () => this.#freeze(entry, incarnation, watched));
      if (entry.state !== "running") return;
      watched.window = { ...watched.window, sinceMs: performance.now(), lengthMs: this.#afterMs };
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
      await collector.drain(entry, incarnation);
      if (!(await routes.offerRest(routeOf(entry, { restAfterMs: this.#afterMs }), OFFER_WITHIN_MS))) {
        return this.#awake(entry);
      }
      await fault("freeze.offered", incarnation.machine.id);
      await incarnation.machine.pause();
      await fault("freeze.frozen", incarnation.machine.id);
      watched.frozenAtMs = performance.now();
      entry.frozen = incarnation;
      entry.update({ state: "frozen" });
      this.#reclaimer?.offer(entry);
      logger.debug("idle sandbox frozen", { sandboxId: entry.id, generation: entry.sandbox.generation });
    } catch (error) {
      logger.warn("an idle sandbox could not be frozen and goes on", { sandboxId: entry.id, error });
      this.#awake(entry);
    }
  }

  /** `forMs`: it may be frozen again after doing nothing for so long. */
  #thaw(entry: Entry, forMs: number): Promise<void> {
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
      this.#of(incarnation, nowMs).window = { sinceMs: nowMs, cpuUsec, lengthMs: forMs };
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
      window: { sinceMs: nowMs, cpuUsec: Number.NEGATIVE_INFINITY, lengthMs: this.#afterMs },
      isBeingLookedAt: false,
      frozenAtMs: 0,
    };
    this.#watched.set(incarnation, watched);
    return watched;
  }
}

/** Without a bound for a machine that has just ended: nothing is begun with it. */
async function usedOf({ machine }: Incarnation): Promise<number> {
  const stats = await machine.stats().catch(() => undefined);
  return stats?.cpuUsec ?? Number.POSITIVE_INFINITY;
}
