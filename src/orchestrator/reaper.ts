import type { Logger } from "#lib/log";
import { Background } from "./background.ts";
import type { Entries } from "./entries.ts";
import type { Entry } from "./entry.ts";

const CHECK_EVERY_MS = 250;
const RETRY_AFTER_MS = 5_000;

/**
 * Ends sandboxes whose time is up, all at once, none waiting for another. An entry is looked at and claimed in one turn of
 * the event loop, so an extension that was answered is never overruled.
 */
export class Reaper {
  readonly #deps: ReaperDeps;
  readonly #timer: NodeJS.Timeout;
  readonly #running: Background;

  constructor(deps: ReaperDeps) {
    this.#deps = deps;
    this.#running = new Background(deps.logger);
    this.#timer = setInterval(() => this.#check(), CHECK_EVERY_MS);
  }

  async close(): Promise<void> {
    clearInterval(this.#timer);
    await this.#running.close();
  }

  #check(): void {
    const nowMs = Date.now();
    for (const entry of this.#deps.entries.all()) {
      // A doomed one that nobody is ending is one whose end failed.
      const isDue = entry.doomed ? entry.ending === undefined : isOver(entry, nowMs);
      if (!isDue || entry.operation !== undefined || entry.retryExpiryAtMs > nowMs) continue;
      // Begun in this very turn, in which it was found due.
      void this.#running.run(`ending ${entry.id} at its timeout`, () =>
        this.#deps.expire(entry).catch((error: unknown) => {
          entry.retryExpiryAtMs = Date.now() + RETRY_AFTER_MS;
          this.#deps.logger.error("a sandbox could not be ended at its timeout", { sandboxId: entry.id, error });
        }),
      );
    }
  }
}

function isOver(entry: Entry, nowMs: number): boolean {
  return (entry.state === "running" || entry.state === "frozen") && entry.sandbox.endAtMs <= nowMs;
}

export interface ReaperDeps {
  readonly entries: Entries;
  readonly logger: Logger;
  /** Carries out the entry's timeout action. */
  readonly expire: (entry: Entry) => Promise<void>;
}
