import type { SandboxId } from "#domain";
import type { Logger } from "#lib/log";
import type { Background } from "../background.ts";
import type { Entry, Incarnation } from "../entry.ts";
import type { LaunchDeps } from "../launch.ts";
import type { Resident } from "./policy.ts";

export interface KeptDeps {
  readonly launch: Pick<LaunchDeps, "routes" | "slots">;
  readonly logger: Logger;
  readonly background: Background;
}

interface Copy {
  readonly entry: Entry;
  readonly incarnation: Incarnation;
  readonly bytes: number;
  readonly keptAtMs: number;
  /** The route table's when nobody was routed to it any more. */
  readonly revision: number;
}

/**
 * Frozen machines of paused sandboxes, as a cache: the checkpoint is the truth, and what is here may be ended at any time. A copy
 * has its slot and no route, and nothing of it moves.
 */
export class KeptCopies {
  readonly #deps: KeptDeps;
  readonly #copies = new Map<SandboxId, Copy>();

  constructor(deps: KeptDeps) {
    this.#deps = deps;
  }

  get count(): number {
    return this.#copies.size;
  }

  /** Preconditions: the machine stands still, and is none of the entry's any more. */
  add(entry: Entry, incarnation: Incarnation, { bytes, revision }: Pick<Copy, "bytes" | "revision">): void {
    // What was connected before the pause is not heard of again.
    incarnation.guest.close();
    const copy = { entry, incarnation, bytes, revision, keptAtMs: performance.now() };
    this.#copies.set(entry.id, copy);
    void incarnation.machine.exited.then(({ reason, detail }) => {
      if (this.#copies.get(entry.id) !== copy) return;
      this.#deps.logger.warn("the kept copy of a paused sandbox ended by itself", {
        sandboxId: entry.id,
        reason: detail ?? reason,
      });
      void this.evict(entry.id);
    });
  }

  residents(): Resident[] {
    return [...this.#copies.values()].map(({ entry, bytes, keptAtMs }) => ({
      id: entry.id,
      bytes,
      usedAtMs: keptAtMs,
    }));
  }

  /** The copy of a sandbox, which is the caller's from then on. */
  take(id: SandboxId): Incarnation | undefined {
    const copy = this.#copies.get(id);
    this.#copies.delete(id);
    return copy?.incarnation;
  }

  /** Ends a copy, as a part of its entry's leaving; undefined: there is none. */
  evict(id: SandboxId): Promise<void> | undefined {
    const copy = this.#copies.get(id);
    if (copy === undefined) return undefined;
    this.#copies.delete(id);
    const { entry } = copy;
    const { leaving } = entry;
    entry.leaving = this.#deps.background.run(`ending the kept copy of ${id}`, async () => {
      await this.#end(copy);
      await leaving;
    });
    return entry.leaving;
  }

  async close(): Promise<void> {
    await Promise.all([...this.#copies.keys()].map((id) => this.evict(id)));
  }

  async #end({ incarnation: { machine, slot }, revision }: Copy): Promise<void> {
    await machine.stop();
    await this.#deps.launch.routes.settled(revision);
    await this.#deps.launch.slots.release(slot);
  }
}
