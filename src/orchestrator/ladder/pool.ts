import { isDeepStrictEqual } from "node:util";
import { MIB, type NetworkPolicy, type SandboxSpec, type Snapshot } from "#domain";
import type { GuestIdentity } from "#guest";
import type { Logger } from "#lib/log";
import type { Background } from "../background.ts";
import type { Incarnation } from "../entry.ts";
import type { LaunchDeps, LaunchSteps } from "../launch.ts";
import { onEnd } from "../machine-end.ts";
import { type CloneSpec, endClone, makeClone, type ReadyClone, wakeClone } from "./clones.ts";
import { afterHit, afterMiss, type Demand, NO_DEMAND, wanted } from "./demand.ts";
import type { Resident, Wish } from "./policy.ts";

/** What a clone is taken to need until one has been measured. */
const CLONE_BYTES = 48 * MIB;
/** After a clone could not be made, or was of no use, doubled until one is. */
const RETRY_MIN_MS = 1_000;
const RETRY_MAX_MS = 60_000;

export interface PoolDeps {
  readonly launch: LaunchDeps;
  readonly logger: Logger;
  readonly background: Background;
  /** Clones made at the same time; they share the processor with those who use it. */
  readonly refillsAtOnce: number;
  /** Most clones in one pool. */
  readonly clonesMax: number;
  /** Something has changed that the policy should look at. */
  readonly onChange: () => void;
  /** The next one may be made. */
  readonly onMade: () => void;
}

interface Pool {
  readonly snapshot: Snapshot;
  /** As it was wanted first. */
  readonly spec: CloneSpec;
  demand: Demand;
  readonly clones: ReadyClone[];
  readonly making: Set<Promise<void>>;
  /** The largest there was. */
  cloneBytes?: number;
  /** Since a clone was of use. */
  failures: number;
  retryAtMs: number;
}

/** What a sandbox is to have. */
export type CloneWish = CloneSpec & Pick<SandboxSpec, "resources">;

/** A clone, or why there is none. */
export type Taken =
  | { readonly clone: ReadyClone; readonly coldBecause?: undefined }
  | { readonly clone?: undefined; readonly coldBecause: string };

/** The ready clones of a node, by snapshot and network policy. It does as it is told; how many there should be is the policy's. */
export class HotPool {
  readonly #deps: PoolDeps;
  readonly #pools = new Map<string, Pool>();
  #making = 0;
  #isClosed = false;
  hits = 0;
  misses = 0;

  constructor(deps: PoolDeps) {
    this.#deps = deps;
  }

  /** A clone for a sandbox that is started now, which is the caller's from then on, or why there is none. */
  take(snapshot: Snapshot, wanted: CloneWish): Taken {
    const taken = this.#take(snapshot, wanted);
    if (taken.clone === undefined) this.misses += 1;
    return taken;
  }

  /** Makes a clone that was taken a sandbox. undefined: it is of no use, and has been ended. */
  async wake(clone: ReadyClone, identity: GuestIdentity, steps: LaunchSteps): Promise<Incarnation | undefined> {
    const pool = this.#pools.get(poolIdOf(clone.snapshot, clone.network));
    try {
      await wakeClone(clone, identity, steps);
      this.hits += 1;
      if (pool !== undefined) pool.failures = 0;
      return clone.incarnation;
    } catch (error) {
      this.misses += 1;
      // The next one may be of as little use, and cost its sandbox as much time.
      if (pool !== undefined) backOff(pool);
      this.#deps.logger.warn("a ready clone is of no use; the snapshot is restored anew", {
        sandboxId: clone.sandboxId,
        error,
      });
      void this.#end(clone);
      return undefined;
    }
  }

  residents(): Resident[] {
    return [...this.#pools].flatMap(([poolId, { clones, demand }]) =>
      clones.map(({ sandboxId, bytes }) => ({ id: sandboxId, poolId, bytes, usedAtMs: demand.usedAtMs })),
    );
  }

  wishes(nowMs: number): Wish[] {
    for (const [id, { demand, clones, making }] of this.#pools) {
      if (wanted(demand, nowMs) === 0 && clones.length + making.size === 0) this.#pools.delete(id);
    }
    return [...this.#pools].map(([poolId, { demand, cloneBytes = CLONE_BYTES, making, retryAtMs }]) => ({
      poolId,
      demand,
      cloneBytes,
      making: making.size,
      mayGrow: retryAtMs <= nowMs,
    }));
  }

  /** Begins to make so many more clones, as far as there is leave to now. */
  refill(poolId: string, count: number): void {
    const pool = this.#pools.get(poolId);
    for (let left = count; pool !== undefined && left > 0 && this.#making < this.#deps.refillsAtOnce; left -= 1) {
      this.#making += 1;
      const making = this.#deps.background
        .run("making a clone", () => this.#make(pool))
        .then(() => {
          this.#making -= 1;
          pool.making.delete(making);
          this.#deps.onMade();
        });
      pool.making.add(making);
    }
  }

  /** Returns when one of the clones that are being made is, or has failed. False: none is being made. */
  async oneMade(): Promise<boolean> {
    const making = [...this.#pools.values()].flatMap((pool) => [...pool.making]);
    if (making.length === 0) return false;
    await Promise.race(making);
    return true;
  }

  /** Ends a clone; undefined: it is none of ours. */
  evict(id: string): Promise<void> | undefined {
    for (const { clones } of this.#pools.values()) {
      const at = clones.findIndex((clone) => clone.sandboxId === id);
      const [clone] = at < 0 ? [] : clones.splice(at, 1);
      if (clone !== undefined) return this.#end(clone);
    }
    return undefined;
  }

  /** Returns when nothing uses the snapshot any more. Precondition: nobody starts from it. */
  async drop(snapshotId: string): Promise<void> {
    const pools = [...this.#pools].filter(([, { snapshot }]) => snapshot.id === snapshotId);
    await Promise.all(pools.map(([poolId]) => this.#dropPool(poolId)));
  }

  /** Makes no more, and ends all. */
  async close(): Promise<void> {
    this.#isClosed = true;
    await Promise.all([...this.#pools.keys()].map((poolId) => this.#dropPool(poolId)));
  }

  async #dropPool(poolId: string): Promise<void> {
    const pool = this.#pools.get(poolId);
    if (pool === undefined) return;
    this.#pools.delete(poolId);
    await Promise.all(pool.making);
    await Promise.all(pool.clones.splice(0).map((clone) => this.#end(clone)));
  }

  #take(snapshot: Snapshot, { resources, ...spec }: CloneWish): Taken {
    // A boot runs commands of the sandbox's own, which nobody has asked for yet.
    if (snapshot.capture === "disk") return { coldBecause: "it holds a disk alone" };
    const nowMs = performance.now();
    const pool = this.#poolOf(snapshot, spec);
    const isFirst = pool.demand === NO_DEMAND;
    // Who asks for other resources is not served by more clones.
    if (!isDeepStrictEqual(resources, snapshot.resources)) return { coldBecause: "it has other resources" };
    const clone = pool.clones.shift();
    pool.demand =
      clone === undefined ? afterMiss(pool.demand, nowMs, this.#deps.clonesMax) : afterHit(pool.demand, nowMs);
    this.#deps.onChange();
    if (clone !== undefined) return { clone };
    if (isFirst) return { coldBecause: "the snapshot was not used so before" };
    return { coldBecause: pool.making.size > 0 ? "its clone is still being made" : "no clone of it is ready" };
  }

  #poolOf(snapshot: Snapshot, { network, templateId, defaultUser }: CloneSpec): Pool {
    const poolId = poolIdOf(snapshot, network);
    const known = this.#pools.get(poolId);
    if (known !== undefined) return known;
    const pool: Pool = {
      snapshot,
      spec: { network, templateId, defaultUser },
      demand: NO_DEMAND,
      clones: [],
      making: new Set(),
      failures: 0,
      retryAtMs: 0,
    };
    if (!this.#isClosed) this.#pools.set(poolId, pool);
    return pool;
  }

  async #make(pool: Pool): Promise<void> {
    try {
      const clone = await makeClone(this.#deps.launch, pool.snapshot, pool.spec);
      pool.cloneBytes = Math.max(pool.cloneBytes ?? 0, clone.bytes);
      pool.clones.push(clone);
      onEnd(clone.incarnation.machine, () => this.#died(pool, clone));
    } catch (error) {
      backOff(pool);
      this.#deps.logger.warn("a ready clone could not be made; sandboxes start without", {
        reason: `snapshot ${pool.snapshot.id}`,
        error,
      });
    }
  }

  #died(pool: Pool, clone: ReadyClone): void {
    const at = pool.clones.indexOf(clone);
    if (at < 0) return;
    pool.clones.splice(at, 1);
    // The next one may end as soon.
    backOff(pool);
    this.#deps.logger.warn("a ready clone ended by itself", { sandboxId: clone.sandboxId });
    void this.#end(clone).then(this.#deps.onChange);
  }

  #end(clone: ReadyClone): Promise<void> {
    const { background, launch } = this.#deps;
    const ended = background.run(`ending ready clone ${clone.sandboxId}`, () => endClone(launch, clone));
    launch.departures.add(ended);
    return ended;
  }
}

function poolIdOf(snapshot: Snapshot, network: NetworkPolicy): string {
  return `${snapshot.id} ${JSON.stringify(network)}`;
}

function backOff(pool: Pool): void {
  pool.retryAtMs = performance.now() + Math.min(RETRY_MAX_MS, RETRY_MIN_MS * 2 ** pool.failures);
  pool.failures += 1;
}
