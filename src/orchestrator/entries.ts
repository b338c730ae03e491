import type { SandboxId } from "#domain";
import type { Entry } from "./entry.ts";

/**
 * A node's sandboxes and who works on each: an entry has one operation at a time. Whoever decides from an entry's state and
 * begins does both in one turn of the event loop, with no await between, so there is never a second writer. A wanted end
 * dooms the entry at once, so it wins over whatever waits.
 */
export class Entries {
  readonly #entries = new Map<SandboxId, Entry>();

  get(id: SandboxId): Entry | undefined {
    return this.#entries.get(id);
  }

  all(): Entry[] {
    return [...this.#entries.values()];
  }

  add(entry: Entry): void {
    this.#entries.set(entry.id, entry);
  }

  remove(entry: Entry): void {
    if (this.holds(entry)) this.#entries.delete(entry.id);
  }

  /** This very entry, not another one under its id. */
  holds(entry: Entry): boolean {
    return this.#entries.get(entry.id) === entry;
  }

  /** Makes `work` the entry's operation. Preconditions: it has none; the work sets its state before its first await. */
  begin<T>(entry: Entry, work: () => Promise<T>): Promise<T> {
    const outcome = work();
    const settled = outcome.then(
      () => {},
      () => {},
    );
    const operation = settled.then(() => {
      if (entry.operation === operation) {
        entry.operation = undefined;
        entry.outcome = undefined;
      }
    });
    entry.outcome = outcome;
    entry.operation = operation;
    return outcome;
  }

  /** Ends a sandbox for good by `work`, once whatever is under way is over. Calls join; after a failure the next one tries
   *  again. */
  end(entry: Entry, work: () => Promise<void>): Promise<void> {
    entry.doomed = true;
    entry.ending ??= this.#endOnce(entry, work).finally(() => {
      entry.ending = undefined;
    });
    return entry.ending;
  }

  async #endOnce(entry: Entry, work: () => Promise<void>): Promise<void> {
    while (entry.operation !== undefined) await entry.operation;
    // What it waited for may have ended it already (a create that failed, a machine that died).
    if (this.holds(entry)) await this.begin(entry, work);
  }

  /** Settles when those that are dead now are gone, or could not be removed. */
  async deadGone(): Promise<void> {
    await Promise.allSettled(this.all().flatMap((entry) => (entry.isDead ? [entry.ending] : [])));
  }

  /** Settles when nothing is under way any more. Precondition: nothing begins any more. */
  async settled(): Promise<void> {
    await Promise.allSettled(this.all().flatMap((entry) => [entry.operation, entry.ending]));
  }
}
