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
}

/** Set-ups and removals at a time; more only take the processor from the sandboxes. */
const WIDTH = 2;
/** How long the stock waits after a slot was taken from it: the processor belongs to the sandbox that starts now. */
const COURTESY_MS = 500;
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
  #making = 0;
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
    await wiring.remove(leftovers);
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
    const leaving = [...this.#used.splice(0), ...(options.remove ? this.#ready.splice(0) : [])];
    for (const index of leaving) await companion?.unprepare(this.#slot(index));
    await wiring.remove(leaving);
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

  /** Those who wait come first, then removals, then the stock; during a pause the latter two rest. */
  #next(): Promise<void> | undefined {
    if (this.#state !== "open") return undefined;
    if (this.#waiting.length > this.#making) {
      const index = this.#unmade.shift();
      if (index !== undefined) return this.#make(index);
    }
    if (this.#pause !== undefined && this.#waiting.length === 0) return undefined;
    const used = this.#used.shift();
    if (used !== undefined) return this.#remove(used);
    if (this.#ready.length + this.#making >= this.#options.ready) return undefined;
    const index = this.#unmade.shift();
    return index === undefined ? undefined : this.#make(index);
  }

  async #make(index: number): Promise<void> {
    this.#making += 1;
    let made = false;
    try {
      await this.#options.wiring.make(index);
      this.#failures = 0;
      const waiting = this.#waiting.shift();
      if (waiting !== undefined) {
        waiting.resolve(this.#hold(index));
        return;
      }
      // It can be taken from now on, and is as good without what is done ahead.
      this.#ready.push(index);
      made = true;
    } catch (error) {
      this.#failed(index, error);
    } finally {
      this.#making -= 1;
    }
    if (made) await this.#prepare(index);
  }

  /** A slot is as good without: its machine then takes longer to start. */
  async #prepare(index: number): Promise<void> {
    try {
      await this.#options.companion?.prepare(this.#slot(index));
    } catch (error) {
      this.#options.log.warn("nothing could be made ready in a network slot", { slot: index, error });
    }
  }

  async #remove(index: number): Promise<void> {
    try {
      await this.#options.companion?.unprepare(this.#slot(index));
      await this.#options.wiring.remove([index]);
      this.#unmade.push(index);
    } catch (error) {
      this.#failed(index, error);
    }
  }

  /** The error goes to whoever waits, else to the log; what is left of the slot is removed before it is tried again. */
  #failed(index: number, cause: unknown): void {
    this.#used.push(index);
    const waiting = this.#waiting.shift();
    if (waiting !== undefined) {
      waiting.reject(new AenvError("unavailable", `cannot set up network slot ${index}`, { cause }));
      return;
    }
    this.#options.log.warn("cannot set up or remove a network slot", { slot: index, error: cause });
    if (this.#state !== "open") return;
    this.#pauseFor(Math.min(RETRY_MAX_MS, RETRY_MIN_MS * 2 ** this.#failures));
    this.#failures += 1;
  }

  /** A pause under way is not prolonged: under steady load the stock is still filled. */
  #pauseFor(delayMs: number): void {
    this.#pause ??= setTimeout(() => this.#unpause(), delayMs);
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

function closedError(): AenvError {
  return new AenvError("unavailable", "this node is shutting down");
}
