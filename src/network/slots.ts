import { AenvError, type NetworkPolicy } from "#domain";
import type { Logger } from "#lib/log";
import { Semaphore } from "#lib/mutex";
import { MAX_SLOTS, type ServerNetwork, slotNetwork } from "./addresses.ts";
import { EDGE_SANDBOX_MAC, SANDBOX_LINK, SANDBOX_MAC } from "./links.ts";
import {
  type HeldSlot,
  INNER_ADDRESS,
  INNER_GATEWAY,
  INNER_PREFIX,
  type Slot,
  type SlotCompanion,
  type Slots,
} from "./network.ts";
import { DEFAULT_POLICY } from "./policy.ts";
import { netnsPath, type Wiring } from "./wiring.ts";

export interface SlotPoolOptions {
  readonly wiring: Wiring;
  readonly server: ServerNetwork;
  readonly log: Logger;
  /** How many slots to keep ready. */
  readonly ready: number;
  /** How many there may be, held ones included; at most MAX_SLOTS. */
  readonly max: number;
  /** Works in slots that nobody holds. */
  readonly companion?: SlotCompanion;
  /** Whether sandboxes start just now. */
  readonly isBusy?: () => boolean;
}

/** Changes at a time; more only take the processor from the sandboxes. */
const WIDTH = 2;
/** How many slots a change removes, and how many it makes, when nobody waits: half of what a slot costs is by the change. */
const BATCH = 4;
/** How long the work is put off after a slot was taken or given back: the processor belongs to the sandbox that starts now, and
 *  what comes up meanwhile is done at once. */
const COURTESY_MS = 500;
/** While more of them start, and half of the stock is there, it is put off again, but not for longer than this. */
const PATIENCE_MS = 2_000;
const RETRY_MIN_MS = 500;
const RETRY_MAX_MS = 30_000;

/**
 * The pool of slots. Every index below `max` is in exactly one place: unmade (nothing of it exists), at work (being made
 * or removed), ready, held, or used (given back, to be removed).
 *
 * A slot is never cleaned, always removed and made anew: connection tracking, rules, addresses and whatever a straggling
 * process of its last sandbox still holds go with the old namespaces. Indexes wait in line, so that the one given back
 * last is the last to be used again.
 */
export class SlotPool implements Slots {
  readonly #options: SlotPoolOptions;
  readonly #unmade: number[] = [];
  readonly #ready: number[] = [];
  readonly #used: number[] = [];
  readonly #held = new Map<number, Slot>();
  readonly #waiting: PromiseWithResolvers<Slot>[] = [];
  readonly #tasks = new Set<Promise<void>>();
  /** Could not be removed, and are tried again after a while: nothing else waits for them. */
  readonly #stuck: number[] = [];
  #retry: NodeJS.Timeout | undefined;
  /** In a row, of removals by themselves. */
  #failedRemovals = 0;
  #making = 0;
  /** Of those that are being made, how many for somebody who waits. A batch takes too long for that. */
  #awaited = 0;
  /** Changes that nobody waits for: one at a time, so that there is room for one that somebody waits for. */
  #batches = 0;
  #state: "new" | "open" | "closed" = "new";
  #failures = 0;
  /** While set, only those who wait are served. */
  #pause: NodeJS.Timeout | undefined;

  constructor(options: SlotPoolOptions) {
    if (options.max > MAX_SLOTS) throw new RangeError(`a server has at most ${MAX_SLOTS} slots, not ${options.max}`);
    this.#options = options;
  }

  async acquire(policy: NetworkPolicy): Promise<Slot> {
    const slot = await this.#take();
    if (policy.internet === DEFAULT_POLICY.internet) return slot;
    try {
      await this.#options.wiring.setPolicy(slot.index, policy);
    } catch (cause) {
      await this.release(slot);
      throw new AenvError("unavailable", `cannot apply the network policy to slot ${slot.index}`, { cause });
    }
    return slot;
  }

  /** Takes the very object that was handed out, so that a late second release cannot take the slot from whoever holds it
   *  by then. Returns at once: taking the slot down and making a new one is the pool's own work (see `settled`). */
  async release(slot: Slot): Promise<void> {
    if (this.#held.get(slot.index) !== slot) return;
    this.#held.delete(slot.index);
    this.#used.push(slot.index);
    this.#pauseFor(COURTESY_MS);
    this.#advance();
  }

  async recover(held: readonly HeldSlot[]): Promise<Slot[]> {
    if (this.#state !== "new") throw new AenvError("internal", "slots are recovered once, before all else");
    const { wiring, log, max } = this.#options;
    await wiring.prepareHost();
    const found = await wiring.inspect();
    const adopting = new Semaphore(WIDTH);
    const adopt = async ({ index, policy }: HeldSlot): Promise<void> => {
      if (found.get(index) === "whole") {
        await wiring.adopt(index, policy);
        this.#hold(index);
      } else {
        log.warn("network slot of a sandbox is lost", { slot: index, reason: found.get(index) ?? "missing" });
      }
    };
    await Promise.all(held.map((slot) => adopting.run(() => adopt(slot))));
    const leftovers = [...found.keys()].filter((index) => !this.#held.has(index));
    await wiring.renew(leftovers, []);
    for (let index = 0; index < max; index += 1) if (!this.#held.has(index)) this.#unmade.push(index);
    this.#state = "open";
    this.#advance();
    return [...this.#held.values()];
  }

  /** `free`: how many can still be acquired. `ready`: how many of these at once. */
  stats(): { readonly free: number; readonly total: number; readonly ready: number } {
    const { max } = this.#options;
    return { free: Math.max(0, max - this.#held.size), total: max, ready: this.#ready.length };
  }

  /** Does what is to be done now and settles when no slot is being made or removed and none needs to be. A failing set-up
   *  that waits to be tried again counts as settled. */
  async settled(): Promise<void> {
    if (this.#failures === 0) this.#unpause();
    while (this.#tasks.size > 0) await Promise.all(this.#tasks);
  }

  async close(options: { readonly remove?: boolean } = {}): Promise<void> {
    this.#state = "closed";
    this.#unpause();
    for (const waiting of this.#waiting.splice(0)) waiting.reject(closedError());
    await this.settled();
    const { wiring, companion } = this.#options;
    clearTimeout(this.#retry);
    const unremoved = [...this.#used.splice(0), ...this.#stuck.splice(0)];
    const leaving = [...unremoved, ...(options.remove ? this.#ready.splice(0) : [])];
    for (const index of leaving) await companion?.unprepare(this.#slot(index));
    await wiring.renew(leaving, []);
    if (options.remove && this.#held.size === 0) await wiring.clearHost();
  }

  #take(): Slot | Promise<Slot> {
    if (this.#state === "new") throw new AenvError("internal", "slots are acquired before they were recovered");
    if (this.#state === "closed") throw closedError();
    const index = this.#ready.shift();
    if (index !== undefined) {
      this.#pauseFor(COURTESY_MS);
      return this.#hold(index);
    }
    const { max } = this.#options;
    if (this.#held.size + this.#waiting.length >= max) {
      throw new AenvError("exhausted", `all ${max} network slots of this node are in use`, {
        hint: "kill or pause sandboxes that are no longer needed, or raise the node's number of slots",
      });
    }
    const waiting = Promise.withResolvers<Slot>();
    this.#waiting.push(waiting);
    this.#advance();
    return waiting.promise;
  }

  /** Starts what is to be done, up to WIDTH at a time. Called after every change. */
  #advance(): void {
    while (this.#tasks.size < WIDTH) {
      const task = this.#next();
      if (task === undefined) return;
      const owned = task.finally(() => {
        this.#tasks.delete(owned);
        this.#advance();
      });
      this.#tasks.add(owned);
    }
  }

  /** Those who wait come first, one by one, then removals and the stock, together; during a pause the latter two rest. After a
   *  failure it is one slot a time, so that one that cannot be made or removed keeps none of the others from it. */
  #next(): Promise<void> | undefined {
    if (this.#state !== "open") return undefined;
    if (this.#waiting.length > this.#awaited) {
      const index = this.#unmade.shift();
      if (index !== undefined) return this.#makeAwaited(index);
    }
    const areWaiting = this.#waiting.length > 0;
    if (!areWaiting && (this.#pause !== undefined || this.#batches > 0)) return undefined;
    const most = areWaiting || this.#failures > 0 ? 1 : BATCH;
    const removed = this.#used.splice(0, most);
    const missing = this.#options.ready - this.#ready.length - this.#making;
    const isAlone = most === 1 && removed.length > 0;
    const made = isAlone ? [] : this.#unmade.splice(0, Math.min(most, Math.max(0, missing)));
    return removed.length + made.length === 0 ? undefined : this.#renewBatch(removed, made);
  }

  async #makeAwaited(index: number): Promise<void> {
    this.#awaited += 1;
    await this.#renew([], [index], () => {
      this.#awaited -= 1;
    });
  }

  /** To its very end, what is done ahead included: two at once would leave no room for who waits. */
  async #renewBatch(removed: readonly number[], made: readonly number[]): Promise<void> {
    this.#batches += 1;
    try {
      await this.#renew(removed, made, () => {});
    } finally {
      this.#batches -= 1;
    }
  }

  async #renew(removed: readonly number[], made: readonly number[], onChanged: () => void): Promise<void> {
    const { wiring, companion } = this.#options;
    this.#making += made.length;
    let failure: { readonly cause: unknown } | undefined;
    try {
      for (const index of removed) await companion?.unprepare(this.#slot(index));
      await wiring.renew(removed, made);
    } catch (cause) {
      failure = { cause };
    }
    this.#making -= made.length;
    onChanged();
    if (failure !== undefined) {
      if (removed.length === 1 && made.length === 0) this.#setAside(removed, failure.cause);
      else this.#failed([...removed, ...made], failure.cause);
      return;
    }
    if (made.length > 0) this.#failures = 0;
    if (removed.length > 0) this.#failedRemovals = 0;
    this.#unmade.push(...removed);
    const stocked = made.filter((index) => !this.#giveToWaiting(index));
    // They can be taken from now on, and are as good without what is done ahead.
    this.#ready.push(...stocked);
    // Whoever holds one by now works in it.
    for (const index of stocked) if (this.#ready.includes(index)) await this.#prepare(index);
  }

  #giveToWaiting(index: number): boolean {
    const waiting = this.#waiting.shift();
    waiting?.resolve(this.#hold(index));
    return waiting !== undefined;
  }

  /** A slot is as good without: its machine then takes longer to start. */
  async #prepare(index: number): Promise<void> {
    try {
      await this.#options.companion?.prepare(this.#slot(index));
    } catch (error) {
      this.#options.log.warn("nothing could be made ready in a network slot", { slot: index, error });
    }
  }

  /** What is left of the slots is removed before they are tried again. */
  #failed(indexes: readonly number[], cause: unknown): void {
    const delayMs = retryDelayMs(this.#failures);
    this.#failures += 1;
    this.#used.push(...indexes);
    const named = indexes.length === 1 ? { slot: indexes[0] ?? 0 } : { count: indexes.length };
    if (this.#tell(cause)) return;
    this.#options.log.warn("cannot set up or remove network slots", { ...named, error: cause });
    if (this.#state === "open") this.#pauseFor(delayMs);
  }

  /** Soon tried again at first: whoever was to do it may have died, which has nothing to do with the slot. */
  #setAside(removed: readonly number[], cause: unknown): void {
    this.#stuck.push(...removed);
    this.#retry ??= setTimeout(() => {
      this.#retry = undefined;
      this.#failedRemovals += 1;
      this.#used.push(...this.#stuck.splice(0));
      this.#advance();
    }, retryDelayMs(this.#failedRemovals));
    this.#options.log.warn("cannot remove a network slot", { slot: removed[0] ?? 0, error: cause });
    // Nothing else could come free.
    if (this.#unmade.length + this.#used.length + this.#making === 0) this.#tell(cause);
  }

  /** Of a failure, to whoever waits for a slot that is not being made. */
  #tell(cause: unknown): boolean {
    const waiting = this.#waiting.length > this.#awaited ? this.#waiting.shift() : undefined;
    waiting?.reject(new AenvError("unavailable", "cannot set up a network slot", { cause }));
    return waiting !== undefined;
  }

  /** A pause under way is not prolonged: under steady load the stock is still filled. */
  #pauseFor(delayMs: number, patienceMs = PATIENCE_MS): void {
    this.#pause ??= setTimeout(() => {
      const { ready, isBusy } = this.#options;
      const isLow = this.#ready.length < ready / 2;
      if (isBusy?.() !== true || isLow || patienceMs <= 0) return this.#unpause();
      this.#pause = undefined;
      this.#pauseFor(COURTESY_MS, patienceMs - COURTESY_MS);
    }, delayMs);
  }

  #unpause(): void {
    clearTimeout(this.#pause);
    this.#pause = undefined;
    this.#advance();
  }

  #hold(index: number): Slot {
    const slot = this.#slot(index);
    this.#held.set(index, slot);
    return slot;
  }

  #slot(index: number): Slot {
    const names = slotNetwork(this.#options.server, index);
    return {
      index,
      hostAddress: names.hostAddress,
      netnsPath: netnsPath(names.sandboxNetns),
      device: SANDBOX_LINK,
      macAddress: SANDBOX_MAC,
      address: `${INNER_ADDRESS}/${INNER_PREFIX}`,
      gateway: INNER_GATEWAY,
      gatewayMacAddress: EDGE_SANDBOX_MAC,
      mtuBytes: this.#options.wiring.mtuBytes,
    };
  }
}

function retryDelayMs(failures: number): number {
  return Math.min(RETRY_MAX_MS, RETRY_MIN_MS * 2 ** failures);
}

function closedError(): AenvError {
  return new AenvError("unavailable", "this node is shutting down");
}
