import type { ReadyStats, SandboxId, Snapshot } from "#domain";
import type { GuestIdentity } from "#guest";
import { fault } from "#lib/fault";
import type { Logger } from "#lib/log";
import { atMost } from "../at-most.ts";
import { Background } from "../background.ts";
import type { Entry, Incarnation } from "../entry.ts";
import type { LaunchDeps, LaunchSteps } from "../launch.ts";
import type { ReadyClone } from "./clones.ts";
import { KeptCopies } from "./kept.ts";
import { leastUsed, plan, type Resident } from "./policy.ts";
import { type CloneWish, HotPool, type Taken } from "./pool.ts";

/** How often the host's memory and what has become old are looked at, beside every change. */
const LOOK_EVERY_MS = 1_000;
/** After a change the processor belongs to the sandbox that starts and the first command in it, or the answer that is given. */
const COURTESY_MS = 200;
/** What is not ended by then is found by the next start. */
const CLOSE_MS = 5_000;
/** Slots that are left to requests: this share, and no more than that many. */
const SLOTS_RESERVED_SHARE = 1 / 4;
const SLOTS_RESERVED_MAX = 32;

export interface LadderDeps {
  /** Its `makeRoom` makes none: what is made ahead takes nothing from anybody. */
  readonly launch: LaunchDeps;
  readonly logger: Logger;
  readonly memory: LadderMemory;
  readonly refillsAtOnce: number;
  readonly clonesMax: number;
}

export interface LadderMemory {
  /** The most that ready clones and kept copies hold together; 0: there are none. */
  readonly budgetBytes: number;
  /** What has to stay available on the host; below it they go. */
  readonly reserveBytes: number;
  /** What a new program could get on the host now. */
  readonly availableBytes: () => number;
}

/**
 * What stands ready on a node: clones of snapshots for sandboxes to come, and frozen copies of paused ones. It carries out what
 * the policy (`policy.ts`) says, at every change and each second; requests come first, and take what they need from it.
 */
export class Ladder {
  readonly #deps: LadderDeps;
  readonly #background: Background;
  readonly #pool: HotPool;
  readonly #kept: KeptCopies;
  #resumes = { copy: 0, checkpoint: 0 };
  #timer: NodeJS.Timeout | undefined;
  #soon: NodeJS.Timeout | undefined;
  #isClosed = false;

  constructor(deps: LadderDeps) {
    const { launch, logger, refillsAtOnce, clonesMax } = deps;
    this.#deps = deps;
    this.#background = new Background(logger);
    const shared = { launch, logger, background: this.#background };
    this.#pool = new HotPool({
      ...shared,
      refillsAtOnce,
      clonesMax,
      onChange: () => this.#lookSoon(),
      onMade: () => this.#look(),
    });
    this.#kept = new KeptCopies(shared);
  }

  start(): void {
    this.#timer = setInterval(() => this.#look(), LOOK_EVERY_MS);
  }

  /** Ends all that stands ready: it belongs to nobody. */
  async close(): Promise<void> {
    this.#isClosed = true;
    clearInterval(this.#timer);
    clearTimeout(this.#soon);
    const ended = Promise.all([this.#pool.close(), this.#kept.close()]).then(() => this.#background.close());
    await atMost(CLOSE_MS, ended);
  }

  /** A ready clone for a sandbox that is started now, to be woken by the caller, or why there is none. */
  take(snapshot: Snapshot, wanted: CloneWish): Taken {
    return this.#pool.take(snapshot, wanted);
  }

  /** undefined: the clone is of no use, and has been ended. */
  wake(clone: ReadyClone, identity: GuestIdentity, steps: LaunchSteps): Promise<Incarnation | undefined> {
    return this.#pool.wake(clone, identity, steps);
  }

  /** Returns when no clone of the snapshot is left. Precondition: nobody starts from it any more. */
  dropSnapshot(snapshotId: string): Promise<void> {
    return this.#pool.drop(snapshotId);
  }

  /**
   * Keeps the frozen machine of a sandbox that has been paused, as long as there is room. False: there is none, and the machine
   * is the caller's to end. `revision`: of the route table when it led there no more.
   */
  async keep(entry: Entry, incarnation: Incarnation, revision: number): Promise<boolean> {
    if (this.#isClosed) return false;
    // Of a machine that has just ended there are none.
    const stats = await incarnation.machine.stats().catch(() => undefined);
    if (stats === undefined || stats.memoryBytes > this.#deps.memory.budgetBytes) return false;
    const bytes = stats.memoryBytes;
    this.#kept.add(entry, incarnation, { bytes, revision });
    await fault("copy.kept", incarnation.machine.id);
    this.#lookSoon();
    return true;
  }

  /** The frozen machine of a paused sandbox, which is the caller's from then on; undefined: it has to be restored. */
  takeCopy(id: SandboxId): Incarnation | undefined {
    return this.#kept.take(id);
  }

  /** Counts a resume, by what it came from. */
  resumed(from: "copy" | "checkpoint"): void {
    this.#resumes[from] += 1;
  }

  /** Returns when a paused sandbox has no machine any more. */
  async dropCopy(id: SandboxId): Promise<void> {
    await this.#kept.evict(id)?.ended;
  }

  /** Gives back the slot of what was used longest ago. False: nothing stands ready. */
  async makeRoom(): Promise<boolean> {
    const victim: Resident | undefined = leastUsed(this.#residents());
    // One that is being made has its slot already.
    if (victim === undefined) return await this.#pool.oneMade();
    await this.#evict(victim.id);
    return true;
  }

  stats(): ReadyStats {
    const { hits, misses } = this.#pool;
    const residents = this.#residents();
    return {
      clones: residents.length - this.#kept.count,
      copies: this.#kept.count,
      memoryBytes: residents.reduce((sum, { bytes }) => sum + bytes, 0),
      hotStarts: hits,
      coldStarts: misses,
      warmResumes: this.#resumes.copy,
      coldResumes: this.#resumes.checkpoint,
    };
  }

  #residents(): Resident[] {
    return [...this.#pool.residents(), ...this.#kept.residents()];
  }

  #evict(id: string): Promise<void> | undefined {
    return this.#pool.evict(id) ?? this.#kept.evict(id)?.released;
  }

  #lookSoon(): void {
    if (this.#isClosed) return;
    this.#soon ??= setTimeout(() => this.#look(), COURTESY_MS);
  }

  #look(): void {
    if (this.#isClosed) return;
    clearTimeout(this.#soon);
    this.#soon = undefined;
    const { memory, launch } = this.#deps;
    const nowMs = performance.now();
    const slots = launch.slots.stats();
    const actions = plan({
      nowMs,
      room: {
        budgetBytes: memory.budgetBytes,
        reserveBytes: memory.reserveBytes,
        availableBytes: memory.availableBytes(),
        slotsFree: slots.free,
        slotsReserved: Math.min(SLOTS_RESERVED_MAX, Math.ceil(slots.total * SLOTS_RESERVED_SHARE)),
      },
      residents: this.#residents(),
      wishes: this.#pool.wishes(nowMs),
    });
    for (const action of actions) {
      if (action.kind === "evict") void this.#evict(action.id);
      else this.#pool.refill(action.poolId, action.count);
    }
  }
}
