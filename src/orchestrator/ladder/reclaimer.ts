import { MIB } from "#domain";
import { fault } from "#lib/fault";
import type { Logger } from "#lib/log";
import { Semaphore } from "#lib/mutex";
import type { Background } from "../background.ts";
import type { Entry } from "../entry.ts";

/** Of one that holds less, what its next moment needs would come back from the disk each time. */
const WORTH_BYTES = 32 * MIB;

/** Where what a machine holds can go. */
export interface SwapRoom {
  /** Makes sure that so much fits. False: it does not. */
  room(bytes: number): Promise<boolean>;
}

export interface ReclaimerDeps {
  readonly swap: SwapRoom;
  readonly background: Background;
  readonly logger: Logger;
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
  offer(entry: Entry): void {
    const { background, logger } = this.#deps;
    const incarnation = entry.frozen;
    if (incarnation === undefined) return;
    const isFrozen = (): boolean => entry.frozen === incarnation && entry.state === "frozen";
    void background.run(`taking the memory of ${entry.id}`, () =>
      this.#turns.run(async () => {
        if (!isFrozen()) return;
        try {
          const { memoryBytes } = await incarnation.machine.stats();
          if (memoryBytes < WORTH_BYTES || !(await this.#deps.swap.room(memoryBytes)) || !isFrozen()) return;
          await fault("reclaim.room", incarnation.machine.id);
          const startedAtMs = performance.now();
          const bytes = await incarnation.machine.reclaim();
          await fault("reclaim.taken", incarnation.machine.id);
          logger.debug("memory of an idle sandbox taken", {
            sandboxId: entry.id,
            durationMs: Math.round(performance.now() - startedAtMs),
            reason: `${Math.round(bytes / MIB)} of ${Math.round(memoryBytes / MIB)} MiB`,
          });
        } catch (error) {
          // One that has just ended has none.
          if (isFrozen()) logger.warn("an idle sandbox keeps its memory", { sandboxId: entry.id, error });
        }
      }),
    );
  }
}
