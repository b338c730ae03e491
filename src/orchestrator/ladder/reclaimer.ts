import { setTimeout as sleep } from "node:timers/promises";
import { MIB } from "#domain";
import { fault } from "#lib/fault";
import type { Logger } from "#lib/log";
import { Semaphore } from "#lib/mutex";
import type { Background } from "../background.ts";
import type { Entry, Incarnation } from "../entry.ts";

/** Of one that holds less, what its next moment needs would come back from the disk each time. */
const WORTH_BYTES = 32 * MIB;
/** So many times what it needs to be awake is much. */
const WORTH_TIMES = 2;
/** The kernel gives up while what it takes is still on its way to the disk. It is asked again a moment later, and no more when it
 *  found next to nothing several times. */
const BARREN_BYTES = MIB;
const BARREN_TURNS = 4;
const WRITTEN_AFTER_MS = 30;
/** What a turn takes at the least, on the average: others wait. */
const TURN_BYTES = 8 * MIB;

/** Pure: whether a machine that stands still holds much. `neededBytes`: what it needs to be awake; 0 where that is not known. */
export function isWorthTaking(heldBytes: number, neededBytes: number): boolean {
  return heldBytes >= Math.max(WORTH_BYTES, WORTH_TIMES * neededBytes);
}

/** Where what a machine holds can go. */
export interface SwapRoom {
  /** Makes sure that so much fits. False: it does not. */
  room(bytes: number): Promise<boolean>;
}

export interface ReclaimerDeps {
  readonly swap: SwapRoom;
  readonly background: Background;
  readonly logger: Logger;
  /** When it aborts nothing more is taken. */
  readonly signal: AbortSignal;
}

export interface Offer {
  /** What it needs to be awake; 0 where that is not known. */
  readonly neededBytes: number;
  /** Its memory went, but for so much of it that is still worth taking. */
  readonly onTaken: (leftBytes: number) => void;
}

/**
 * Takes the memory of sandboxes that stand still: it goes to swap, and what is touched after they are woken comes back page by
 * page. One after another, since the disk has no more to give.
 */
export class Reclaimer {
  readonly #deps: ReclaimerDeps;
  readonly #turns = new Semaphore(1);

  constructor(deps: ReclaimerDeps) {
    this.#deps = deps;
  }

  /** Does so in the background, unless the sandbox is woken before its turn comes. One that is woken meanwhile takes no harm. */
  offer(entry: Entry, { neededBytes, onTaken }: Offer): void {
    const { background, logger, signal } = this.#deps;
    const incarnation = entry.frozen;
    if (incarnation === undefined) return;
    const isWanted = (): boolean => !signal.aborted && entry.frozen === incarnation && entry.state === "frozen";
    void background.run(`taking the memory of ${entry.id}`, async () => {
      try {
        const leftBytes = await this.#turns.run(() => this.#takeWorth(entry, incarnation, neededBytes, isWanted));
        if (leftBytes === undefined || !isWanted()) return;
        await this.#bringBackRuntime(entry, incarnation, isWanted);
        if (isWanted()) onTaken(isWorthTaking(leftBytes, 0) ? leftBytes : 0);
      } catch (error) {
        // One that has just ended has none.
        if (isWanted()) logger.warn("an idle sandbox keeps its memory", { sandboxId: entry.id, error });
      }
    });
  }

  /** Before anybody waits for it, and before it is counted against whoever does nothing. */
  async #bringBackRuntime({ id }: Entry, { machine }: Incarnation, isWanted: () => boolean): Promise<void> {
    try {
      await machine.bringBackRuntime();
    } catch (error) {
      if (isWanted()) {
        this.#deps.logger.warn("the runtime of an idle sandbox is left in swap", { sandboxId: id, error });
      }
    }
    await fault("reclaim.returned", machine.id);
  }

  /** How much is left of it; undefined: it was not worth it, or nothing went. */
  async #takeWorth(
    { id }: Entry,
    incarnation: Incarnation,
    neededBytes: number,
    isWanted: () => boolean,
  ): Promise<number | undefined> {
    if (!isWanted()) return undefined;
    const startedAtMs = performance.now();
    const { memoryBytes } = await incarnation.machine.stats();
    if (!isWorthTaking(memoryBytes, neededBytes)) return undefined;
    const leftBytes = await this.#take(incarnation, memoryBytes, isWanted);
    if (leftBytes >= memoryBytes) return undefined;
    this.#deps.logger.debug("memory of an idle sandbox taken", {
      sandboxId: id,
      durationMs: Math.round(performance.now() - startedAtMs),
      reason: `${Math.round((memoryBytes - leftBytes) / MIB)} of ${Math.round(memoryBytes / MIB)} MiB`,
    });
    return leftBytes;
  }

  /**
   * Until little is left, or the kernel finds nothing more to take; returns how much is left. What counts is what is gone a moment
   * later: the kernel still counts what is on its way to the disk, and the machine's runtime may want some of it back.
   */
  async #take({ machine }: Incarnation, heldBytes: number, isWanted: () => boolean): Promise<number> {
    const { swap, signal } = this.#deps;
    const turnsMax = BARREN_TURNS + heldBytes / TURN_BYTES;
    let leftBytes = heldBytes;
    for (let [turn, barren] = [0, 0]; turn < turnsMax && barren < BARREN_TURNS; turn += 1) {
      if (!isWorthTaking(leftBytes, 0) || !(await swap.room(leftBytes)) || !isWanted()) break;
      await fault("reclaim.room", machine.id);
      await machine.reclaim();
      await fault("reclaim.taken", machine.id);
      await sleep(WRITTEN_AFTER_MS, undefined, { signal }).catch(() => {});
      const { memoryBytes } = await machine.stats();
      barren = leftBytes - memoryBytes < BARREN_BYTES ? barren + 1 : 0;
      leftBytes = memoryBytes;
    }
    return leftBytes;
  }
}
