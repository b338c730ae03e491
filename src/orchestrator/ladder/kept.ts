import type { SandboxId } from "#domain";
import { fault } from "#lib/fault";
import type { Logger } from "#lib/log";
import type { Background } from "../background.ts";
import type { Entry, Incarnation } from "../entry.ts";
import type { LaunchDeps } from "../launch.ts";
import { onEnd } from "../machine-end.ts";
import type { Resident } from "./policy.ts";

export interface KeptDeps {
  readonly launch: Pick<LaunchDeps, "routes" | "slots" | "departures">;
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
  /** Of its machine's end, while it is here. */
  readonly watching: Disposable;
}

/** How far the end of a copy has come. Neither rejects. */
interface Eviction {
  readonly ended: Promise<void>;
  readonly released: Promise<void>;
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
    const watching = onEnd(incarnation.machine, ({ reason, detail }) => {
      this.#deps.logger.warn("the kept copy of a paused sandbox ended by itself", {
        sandboxId: entry.id,
        reason: detail ?? reason,
      });
      void this.evict(entry.id);
    });
    this.#copies.set(entry.id, { entry, incarnation, bytes, revision, keptAtMs: performance.now(), watching });
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
    return this.#remove(id)?.incarnation;
  }

  /** Ends a copy, its machine as a part of its entry's leaving; undefined: there is none. Its slot follows when no edge sends there
   *  any more, for which nobody waits who only wants its machine gone. */
  evict(id: SandboxId): Eviction | undefined {
    const copy = this.#remove(id);
    if (copy === undefined) return undefined;
    const { entry, incarnation, revision } = copy;
    const { leaving } = entry;
    const { background, launch } = this.#deps;
    let isThere = true;
    const ended = background.run(`ending the kept copy of ${id}`, async () => {
      await incarnation.machine.stop();
      await fault("copy.stopped", incarnation.machine.id);
      isThere = false;
    });
    entry.leaving = ended.then(() => leaving);
    const released = background.run(`giving back the slot of the kept copy of ${id}`, async () => {
      await ended;
      // A machine that could not be ended is still in it.
      if (isThere) return;
      await launch.routes.settled(revision);
      await launch.slots.release(incarnation.slot);
      await fault("copy.released", incarnation.machine.id);
    });
    launch.departures.add(released);
    return { ended, released };
  }

  async close(): Promise<void> {
    await Promise.all([...this.#copies.keys()].map((id) => this.evict(id)?.ended));
  }

  #remove(id: SandboxId): Copy | undefined {
    const copy = this.#copies.get(id);
    this.#copies.delete(id);
    copy?.watching[Symbol.dispose]();
    return copy;
  }
}
