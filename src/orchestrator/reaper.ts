import { expiryOf } from "#domain";
import type { Logger } from "#lib/log";
import { Background } from "./background.ts";
import type { Entries } from "./entries.ts";
import type { Entry } from "./entry.ts";

const CHECK_EVERY_MS = 250;
const RETRY_AFTER_MS = 5_000;
/** Of those that nobody waits for: a shorter retention may be set when thousands have been paused for longer. */
const UNHURRIED_AT_ONCE = 8;

/**
 * Ends sandboxes whose time is up. Those that run end all at once, none waiting for another; paused ones that have been kept
 * long enough, and those whose end failed, a few at a time. An entry is looked at and claimed in one turn of the event loop, so
 * an extension or a resume that was answered is never overruled.
 */
export class Reaper {
  readonly #deps: ReaperDeps;
  readonly #timer: NodeJS.Timeout;
  readonly #running: Background;
  #unhurried = 0;

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
      const isDue = entry.doomed ? entry.ending === undefined : this.#isOver(entry, nowMs);
      if (!isDue || entry.operation !== undefined || entry.retryExpiryAtMs > nowMs) continue;
      if (!entry.doomed && entry.state !== "paused") void this.#end(entry);
      else if (this.#unhurried < UNHURRIED_AT_ONCE) {
        this.#unhurried += 1;
        void this.#end(entry).finally(() => {
          this.#unhurried -= 1;
        });
      }
    }
  }

  /** Begins in this very turn, in which it was found due. Never rejects. */
  #end(entry: Entry): Promise<void> {
    return this.#running.run(`ending ${entry.id}, whose time is up,`, () =>
      this.#deps.expire(entry).catch((error: unknown) => {
        entry.retryExpiryAtMs = Date.now() + RETRY_AFTER_MS;
        this.#deps.logger.error("a sandbox whose time is up could not be ended", { sandboxId: entry.id, error });
      }),
    );
  }

  #isOver(entry: Entry, nowMs: number): boolean {
    const expiry = expiryOf(entry.sandbox, this.#deps.pausedRetentionMs);
    return expiry !== undefined && expiry.atMs <= nowMs;
  }
}

export interface ReaperDeps {
  readonly entries: Entries;
  readonly logger: Logger;
  /** How long a paused one is kept; undefined: for ever. */
  readonly pausedRetentionMs: number | undefined;
  /** Does what the entry's expiry says. */
  readonly expire: (entry: Entry) => Promise<void>;
}
