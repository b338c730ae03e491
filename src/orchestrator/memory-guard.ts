import { MIB } from "#domain";
import type { MemoryReading } from "#driver";
import type { Logger } from "#lib/log";
import { Background } from "./background.ts";
import type { Entries } from "./entries.ts";
import type { Entry, Incarnation } from "./entry.ts";

/** A sandbox is looked at again when its memory could have run out, at this rate of growth. */
const GROWTH_BYTES_PER_MS = (2 * 1024 * MIB) / 1000;
const LOOK_AGAIN_MIN_MS = 2;
const LOOK_AGAIN_MAX_MS = 500;
/** New sandboxes are found at this pace; none reaches its limit sooner. */
const ROUND_MAX_MS = 100;
/** The runtime gives a killed process's memory back a moment after its end. */
const AFTER_KILL_MS = 100;
/** Where nothing was worth killing, or the agent did not answer. */
const AFTER_NOTHING_MS = 1_000;
/** Such a machine may stay near its limit for hours, and each look costs a hundredth of this. */
const LOOK_AFTER_NOTHING_MS = 10;
/** All looks together take at most one part in so many of the server's processor time: guests can bring about that many are due. */
const TIME_PARTS = 10;
/** What is still due after so long is left to the next round, in which whoever has been due longest comes first. */
const ROUND_BUDGET_MS = 5;
/** For the agent to be told of the kernel's kills all the same: the end of a killed command waits 300 ms for that word. */
const UNTOLD_MAX_MS = 200;
const RESERVE_MIN_BYTES = 16 * MIB;
const RESERVE_MAX_BYTES = 64 * MIB;

interface Watched {
  lookAtMs: number;
  /** As last told to the agent. undefined: not read yet. */
  oomKills: number | undefined;
  /** When the first kill was seen that the agent has not been told of. */
  untoldSinceMs: number | undefined;
  /** When the agent may be asked to free memory. While it is being asked, and may be late, the machine is looked at all the same: a look
   *  after a kill by the kernel is what gives it room. */
  askAtMs: number;
  /** The agent's last answer was that there is nothing to kill, and no memory has been free since. */
  hasNothing: boolean;
}

interface AtWork {
  readonly entry: Entry;
  readonly incarnation: Incarnation;
  readonly watched: Watched;
}

/**
 * Frees memory in a sandbox before the host's kernel does. The kernel sees the runtime's processes, not the guest's: what a
 * program reads was first touched by the sandbox process, so at the limit it may kill that one, and everything with it. The
 * agent knows who holds what. When a machine comes near its limit the agent is asked to kill its largest process; where the
 * kernel was quicker all the same, the agent is told, so that the command's end can say why. See
 * docs/decisions/0003-out-of-memory.md.
 */
export class MemoryGuard {
  readonly #entries: Entries;
  readonly #logger: Logger;
  readonly #watched = new WeakMap<Incarnation, Watched>();
  readonly #running: Background;
  #timer: NodeJS.Timeout;
  #closed = false;

  constructor({ entries, logger }: { readonly entries: Entries; readonly logger: Logger }) {
    this.#entries = entries;
    this.#logger = logger;
    this.#running = new Background(logger);
    this.#timer = setTimeout(() => this.#round(), ROUND_MAX_MS);
  }

  async close(): Promise<void> {
    this.#closed = true;
    clearTimeout(this.#timer);
    await this.#running.close();
  }

  #round(): void {
    const before = process.threadCpuUsage();
    const beganMs = performance.now();
    const all = [...this.#atWork()];
    const due = all.filter(({ watched }) => watched.lookAtMs <= beganMs);
    due.sort((one, other) => one.watched.lookAtMs - other.watched.lookAtMs);
    let nowMs = beganMs;
    for (const each of due) {
      if (nowMs - beganMs >= ROUND_BUDGET_MS) break;
      this.#tryLook(each, nowMs);
      nowMs = performance.now();
    }
    const lookAtMs = all.reduce((first, { watched }) => Math.min(first, watched.lookAtMs), nowMs + ROUND_MAX_MS);
    const { user, system } = process.threadCpuUsage(before);
    const restMs = ((user + system) / 1000) * (TIME_PARTS - 1);
    if (!this.#closed) this.#timer = setTimeout(() => this.#round(), Math.max(1, lookAtMs - nowMs, restMs));
  }

  *#atWork(): Generator<AtWork> {
    for (const entry of this.#entries.all()) {
      const { incarnation } = entry;
      // While a snapshot's files are synced its sandbox is long at work again.
      const isAtWork = entry.state === "running" || entry.state === "snapshotting";
      if (incarnation !== undefined && isAtWork) yield { entry, incarnation, watched: this.#watchedOf(incarnation) };
    }
  }

  /** One that cannot be looked at keeps nobody from looking at the others. */
  #tryLook(sandbox: AtWork, nowMs: number): void {
    try {
      this.#look(sandbox, nowMs);
    } catch (error) {
      this.#logger.warn("the memory of a sandbox could not be looked at", { sandboxId: sandbox.entry.id, error });
    }
  }

  #look({ entry, incarnation, watched }: AtWork, nowMs: number): void {
    // Where it cannot be read now.
    watched.lookAtMs = nowMs + ROUND_MAX_MS;
    const reading = incarnation.machine.memory();
    // It has just ended.
    if (reading === undefined) return;
    // What was killed before this server looked has been told, or nobody waits for it any more.
    watched.oomKills ??= reading.oomKills;
    const killed = reading.oomKills - watched.oomKills;
    const spareBytes = spareOf(reading, entry.sandbox.spec.resources.memoryBytes);
    if (spareBytes > 0 && watched.hasNothing) {
      // What fills it next may be worth killing.
      watched.hasNothing = false;
      watched.askAtMs = nowMs;
    }
    watched.lookAtMs = nowMs + (watched.hasNothing && killed === 0 ? LOOK_AFTER_NOTHING_MS : lookAgainMs(spareBytes));
    if (killed > 0) {
      // To answer, the agent takes memory: at the limit that costs the next process its life.
      watched.untoldSinceMs ??= nowMs;
      if (spareBytes <= 0 && nowMs - watched.untoldSinceMs < UNTOLD_MAX_MS) return;
      watched.oomKills = reading.oomKills;
      watched.untoldSinceMs = undefined;
      this.#do(entry, () => this.#told(entry, incarnation, killed));
    }
    if (spareBytes > 0 || nowMs < watched.askAtMs) return;
    watched.askAtMs = Number.POSITIVE_INFINITY;
    watched.hasNothing = false;
    this.#do(entry, async () => {
      let hasFreed = false;
      try {
        hasFreed = await this.#free(entry, incarnation);
        watched.hasNothing = !hasFreed;
      } finally {
        watched.askAtMs = performance.now() + (hasFreed ? AFTER_KILL_MS : AFTER_NOTHING_MS);
      }
    });
  }

  #watchedOf(incarnation: Incarnation): Watched {
    const known = this.#watched.get(incarnation);
    if (known !== undefined) return known;
    const watched = { lookAtMs: 0, oomKills: undefined, untoldSinceMs: undefined, askAtMs: 0, hasNothing: false };
    this.#watched.set(incarnation, watched);
    return watched;
  }

  async #told(entry: Entry, { guest }: Incarnation, killed: number): Promise<void> {
    this.#logger.warn("the kernel killed processes of a sandbox for memory", { sandboxId: entry.id, count: killed });
    await guest.hostKilled(killed, entry.record.initKey);
  }

  /** True when a process was killed. */
  async #free(entry: Entry, { guest }: Incarnation): Promise<boolean> {
    const victim = await guest.freeMemory(entry.record.initKey);
    if (victim === undefined) return false;
    const reason = `${victim.name} (pid ${victim.pid}, others: ${victim.others}) held ${Math.round(victim.bytes / MIB)} MiB`;
    this.#logger.warn("sandbox out of memory: the agent killed what held most", { sandboxId: entry.id, reason });
    return true;
  }

  #do(entry: Entry, work: () => Promise<void>): void {
    void this.#running.run(`telling ${entry.id} about memory`, () =>
      work().catch((error: unknown) => {
        // An agent of an older build does not know the question, one of a sandbox that ends does not answer it.
        this.#logger.warn("a sandbox's agent could not be told about memory", { sandboxId: entry.id, error });
      }),
    );
  }
}

/** What may still be used before the reserve is; the reserve is what a quick program takes until it is stopped. */
export function spareOf(reading: MemoryReading, limitBytes: number): number {
  const reserveBytes = Math.min(RESERVE_MAX_BYTES, Math.max(RESERVE_MIN_BYTES, limitBytes / 8));
  return limitBytes - reserveBytes - reading.usedBytes;
}

export function lookAgainMs(spareBytes: number): number {
  return Math.min(LOOK_AGAIN_MAX_MS, Math.max(LOOK_AGAIN_MIN_MS, spareBytes / GROWTH_BYTES_PER_MS));
}
