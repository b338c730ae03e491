import type { Logger } from "#lib/log";
import { Semaphore } from "#lib/mutex";
import type { Telemetry } from "#telemetry";
import { atMost } from "./at-most.ts";
import { Background } from "./background.ts";
import type { Entries } from "./entries.ts";
import type { Entry, Incarnation } from "./entry.ts";
import { hasEnded } from "./machine-end.ts";

/** E2B's clients expect a reading every five seconds. */
const EVERY_MS = 5_000;
const FIRST_AFTER_MS = 1_000;
/** New sandboxes are found at this pace. */
const ROUND_MS = 250;
const ROUND_WIDTH = 16;
/** Of a sandbox that does not answer, doubled each time. */
const RETRY_MAX_MS = 60_000;
/** For all pages of a reading together. */
const TIMEOUT_MS = 2_000;
/** A sandbox rests so many times as long as its last reading took: a slow one has a small share of the width. */
const RESTS = 10;
/** How long somebody waits for what an agent has not handed over yet. */
const ASKED_WAIT_MS = 1_000;
const LAST_WAIT_MS = 250;
/** Answers in one go; what an agent keeps fits into fewer. */
const PAGES_MAX = 8;
const SWEEP_EVERY_MS = 600_000;

interface Watched {
  /** When metrics are read next; whichever reading comes then takes them along. */
  dueMs: number;
  failures: number;
  /** It has its place in the width, or waits for one. */
  isInRound: boolean;
  /** One reading at a time. */
  readonly turn: Semaphore;
  /** The one that has not begun yet. Never rejects. */
  next: Promise<void> | undefined;
  /** Its agent was asked to say when it logs something after what was read last, and has not said so. */
  isSilent: boolean;
  /** False: it was asked, and is of a build that cannot. */
  canAwait: boolean;
}

/**
 * Brings metrics and logs of running sandboxes from their agents to the disk: every five seconds, and when somebody asks, and
 * before a sandbox goes. One that answers slowly or not at all is asked more seldom and holds up nobody.
 */
export class Collector {
  readonly #telemetry: Telemetry;
  readonly #entries: Entries;
  readonly #logger: Logger;
  readonly #watched = new WeakMap<Incarnation, Watched>();
  readonly #width = new Semaphore(ROUND_WIDTH);
  readonly #running: Background;
  readonly #closing = new AbortController();
  #timer: NodeJS.Timeout | undefined;
  #sweepDueMs = 0;

  constructor({
    telemetry,
    entries,
    logger,
  }: {
    readonly telemetry: Telemetry;
    readonly entries: Entries;
    readonly logger: Logger;
  }) {
    this.#telemetry = telemetry;
    this.#entries = entries;
    this.#logger = logger;
    this.#running = new Background(logger);
  }

  /** Begins with the rounds. Those that run already are not all asked at once, now or later. */
  start(): void {
    for (const { incarnation } of this.#entries.all()) {
      if (incarnation !== undefined) this.#of(incarnation).dueMs = performance.now() + Math.random() * EVERY_MS;
    }
    this.#timer = setInterval(() => this.#round(), ROUND_MS);
  }

  async close(): Promise<void> {
    this.#closing.abort();
    clearInterval(this.#timer);
    await this.#running.close();
  }

  /** What a running sandbox has logged until now is on disk, unless its agent takes too long. Never rejects. */
  async refresh(entry: Entry): Promise<void> {
    if (entry.incarnation === undefined || entry.state !== "running") return;
    await atMost(ASKED_WAIT_MS, this.#fresh(entry, entry.incarnation));
  }

  /** As refresh, for the last time of this incarnation: nobody waits long for it. */
  async drain(entry: Entry, incarnation: Incarnation): Promise<void> {
    // One that stands still was asked before it was frozen.
    if (hasEnded(incarnation.machine) || entry.frozen === incarnation) return;
    await atMost(LAST_WAIT_MS, this.#fresh(entry, incarnation));
  }

  /** As drain, before it stands still. From then on its agent says when it has logged something, and is asked for nothing until it
   *  has: a question costs as much as all else of a moment that a frozen one goes on for. */
  async drainToRest(entry: Entry, incarnation: Incarnation): Promise<void> {
    const watched = this.#of(incarnation);
    if (watched.isSilent) return;
    await this.drain(entry, incarnation);
    if (!watched.canAwait || hasEnded(incarnation.machine)) return;
    // Without it the next rest asks again.
    const afterUs = await this.#telemetry.lastEntryUs(entry.id).catch(() => undefined);
    if (afterUs === undefined) return;
    watched.isSilent = true;
    void this.#running.run(`awaiting logs of ${entry.id}`, async () => {
      try {
        const { guest } = incarnation;
        const { signal } = this.#closing;
        watched.canAwait = await guest.awaitEntry(entry.record.initKey, { afterUs, signal });
      } catch {
        // Nothing is known of one that cannot be heard.
      } finally {
        watched.isSilent = false;
      }
    });
  }

  /** As drainToRest, for what its agent has said since then that it logged. */
  async drainNews(entry: Entry, incarnation: Incarnation): Promise<void> {
    if (this.#of(incarnation).canAwait) await this.drainToRest(entry, incarnation);
  }

  /** Metrics are not due in a moment that a frozen one goes on for. */
  putOff(incarnation: Incarnation): void {
    const watched = this.#of(incarnation);
    watched.dueMs = Math.max(watched.dueMs, performance.now() + EVERY_MS);
  }

  #round(): void {
    const nowMs = performance.now();
    for (const entry of this.#entries.all()) {
      const { incarnation } = entry;
      if (incarnation === undefined || entry.state !== "running") continue;
      const watched = this.#of(incarnation);
      if (watched.isInRound || watched.dueMs > nowMs || hasEnded(incarnation.machine)) continue;
      watched.isInRound = true;
      void this.#running.run(`reading metrics of ${entry.id}`, () =>
        this.#width
          .run(() => this.#readDue(entry, incarnation, watched))
          .finally(() => {
            watched.isInRound = false;
          }),
      );
    }
    if (nowMs < this.#sweepDueMs) return;
    this.#sweepDueMs = nowMs + SWEEP_EVERY_MS;
    void this.#running.run("removing old metrics and logs", () => this.#telemetry.sweep());
  }

  /** Waits for no other reading of the same sandbox: that would keep a place from others. The next round comes back to it. */
  async #readDue(entry: Entry, incarnation: Incarnation, watched: Watched): Promise<void> {
    if (!watched.turn.isFree || watched.dueMs > performance.now()) return;
    if (entry.incarnation !== incarnation || entry.state !== "running") return;
    await watched.turn.run(() => this.#read(entry, incarnation));
  }

  /** A reading that begins not before now; all who ask meanwhile share it. */
  #fresh(entry: Entry, incarnation: Incarnation): Promise<void> {
    const watched = this.#of(incarnation);
    watched.next ??= this.#running.run(`reading logs of ${entry.id}`, async () => {
      // It is noted before it begins.
      await Promise.resolve();
      await watched.turn.run(async () => {
        watched.next = undefined;
        await this.#read(entry, incarnation);
      });
    });
    return watched.next;
  }

  async #read(entry: Entry, incarnation: Incarnation): Promise<void> {
    const watched = this.#of(incarnation);
    const startedMs = performance.now();
    const metrics = watched.dueMs <= startedMs;
    const dueAfter = (everyMs: number): number => {
      const endedMs = performance.now();
      return Math.max(startedMs + everyMs, endedMs + RESTS * (endedMs - startedMs));
    };
    try {
      const isKnown = await this.#readPages(entry, incarnation, metrics);
      watched.failures = 0;
      if (!isKnown) watched.dueMs = Number.POSITIVE_INFINITY;
      else if (metrics) watched.dueMs = dueAfter(EVERY_MS);
    } catch (error) {
      watched.dueMs = dueAfter(Math.min(RETRY_MAX_MS, EVERY_MS * 2 ** watched.failures));
      watched.failures += 1;
      // One that is being paused or ended may well not answer.
      if (entry.incarnation !== incarnation || entry.state !== "running" || watched.failures > 1) return;
      this.#logger.warn("a sandbox's metrics and logs cannot be read; it is tried again", {
        sandboxId: entry.id,
        error,
      });
    }
  }

  /** False: its agent is of a build that has no log. */
  async #readPages({ id, record }: Entry, { guest }: Incarnation, metrics: boolean): Promise<boolean> {
    let afterUs = await this.#telemetry.lastEntryUs(id);
    const endMs = performance.now() + TIMEOUT_MS;
    for (let page = 0; page < PAGES_MAX; page += 1) {
      const timeoutMs = endMs - performance.now();
      // What is left is for the next reading.
      if (timeoutMs <= 0) break;
      const answer = await guest.telemetry(record.initKey, { afterUs, metrics: metrics && page === 0, timeoutMs });
      if (answer === undefined) return false;
      const { reading, entries, more } = answer;
      await this.#telemetry.record(id, reading && { ...reading, atMs: Date.now() }, entries);
      // What was left out is not there to be forgotten by the agent.
      const lastUs = await this.#telemetry.lastEntryUs(id);
      if (!more || lastUs <= afterUs) break;
      afterUs = lastUs;
    }
    return true;
  }

  #of(incarnation: Incarnation): Watched {
    const known = this.#watched.get(incarnation);
    if (known !== undefined) return known;
    const watched: Watched = {
      dueMs: performance.now() + FIRST_AFTER_MS,
      failures: 0,
      isInRound: false,
      turn: new Semaphore(1),
      next: undefined,
      isSilent: false,
      canAwait: true,
    };
    this.#watched.set(incarnation, watched);
    return watched;
  }
}
