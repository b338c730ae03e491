import type { Logger } from "#lib/log";

/** Work that goes on after an answer: every task is awaited by `close`, every failure logged once. */
export class Background {
  readonly #tasks = new Set<Promise<void>>();
  readonly #logger: Logger;

  constructor(logger: Logger) {
    this.#logger = logger;
  }

  /** Calls `work` before it returns. The promise settles, and never rejects, when the work is over. */
  run(what: string, work: () => Promise<void>): Promise<void> {
    const task = work().catch((error: unknown) => this.#logger.error(`${what} failed`, { error }));
    const tracked = task.finally(() => this.#tasks.delete(tracked));
    this.#tasks.add(tracked);
    return tracked;
  }

  async close(): Promise<void> {
    while (this.#tasks.size > 0) await Promise.all(this.#tasks);
  }
}
