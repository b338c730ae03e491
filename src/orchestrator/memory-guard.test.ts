import assert from "node:assert/strict";
import { type TestContext, test } from "node:test";
import { MIB, type SandboxId } from "#domain";
import type { MemoryReading } from "#driver";
import { silentLogger } from "#lib/log";
import { Entries } from "./entries.ts";
import { Entry, type Incarnation } from "./entry.ts";
import { lookAgainMs, MemoryGuard, spareOf } from "./memory-guard.ts";
import type { SandboxRecord } from "./record.ts";

const LIMIT_BYTES = 256 * MIB;
const EMPTY: MemoryReading = { usedBytes: 0, oomKills: 7 };
const FULL: MemoryReading = { usedBytes: LIMIT_BYTES, oomKills: 7 };
const FULL_AFTER_KILL: MemoryReading = { ...FULL, oomKills: 8 };

test("the reserve is an eighth of the limit, within bounds; the nearer to it, the sooner the next look", () => {
  const spareMib = (limitMib: number) => spareOf({ usedBytes: 0, oomKills: 0 }, limitMib * MIB) / MIB;
  assert.deepEqual([64, 256, 1024, 8192].map(spareMib), [48, 224, 960, 8128]);
  assert.equal(lookAgainMs(4096 * MIB), 500);
  assert.equal(lookAgainMs(0), 2);
  // Doubling 1 GiB in half a second is still noticed in time.
  assert.ok(lookAgainMs(512 * MIB) <= 260);
});

test("one kill at a time near the limit, also while a snapshot is made; the kernel's own are told, those from before are not", async (t) => {
  await using guarded = new Guarded(t);
  const watched = guarded.add("i1");
  await guarded.pass(150);
  assert.deepEqual(watched.said, []);
  watched.reading = { ...FULL, usedBytes: LIMIT_BYTES - 20 * MIB };
  await guarded.pass(400);
  assert.deepEqual(watched.said, ["free k"]);
  watched.entry.update({ state: "snapshotting" });
  watched.reading = { ...EMPTY, oomKills: 9 };
  await guarded.pass(150);
  assert.deepEqual(watched.said, ["free k", "host 2 k"]);
});

test("the agent is told of the kernel's kills once their memory is back; until then nothing else is asked of it", async (t) => {
  await using guarded = new Guarded(t);
  const watched = guarded.add("i1");
  await guarded.pass(150);
  watched.reading = FULL_AFTER_KILL;
  await guarded.pass(150);
  assert.deepEqual(watched.said, []);
  watched.reading = { ...EMPTY, oomKills: 8 };
  await guarded.pass(10);
  assert.deepEqual(watched.said, ["host 1 k"]);
});

test("the agent is told of the kernel's kills after a while, though their memory is not back", async (t) => {
  await using guarded = new Guarded(t);
  const watched = guarded.add("i1", { reading: FULL });
  watched.victim = undefined;
  await guarded.pass(150);
  watched.said.length = 0;
  watched.reading = FULL_AFTER_KILL;
  await guarded.pass(195);
  assert.deepEqual(watched.said, []);
  // The end of a killed command waits 300 ms for that word.
  await guarded.pass(30);
  assert.deepEqual(watched.said, ["host 1 k"]);
});

test("a machine is looked at while its agent, which is late, is asked to free memory: once", async (t) => {
  await using guarded = new Guarded(t);
  const watched = guarded.add("i1", { reading: FULL });
  watched.answerMs = 300;
  await guarded.pass(100);
  assert.equal(await guarded.looks(watched, 200), 100);
  assert.deepEqual(watched.said, ["free k"]);
});

test("a machine that could not be looked at while its agent was asked has it asked again", async (t) => {
  await using guarded = new Guarded(t);
  const watched = guarded.add("i1", { reading: FULL });
  watched.answerMs = 200;
  await guarded.pass(100);
  watched.isUnreadable = true;
  await guarded.pass(300);
  watched.isUnreadable = false;
  watched.reading = FULL;
  await guarded.pass(110);
  assert.deepEqual(watched.said, ["free k", "free k"]);
});

test("a machine in which the agent finds nothing to kill may stay so, and is looked at less often until anything changes", async (t) => {
  await using guarded = new Guarded(t);
  const watched = guarded.add("i1", { reading: FULL });
  watched.victim = undefined;
  await guarded.pass(200);
  assert.equal(await guarded.looks(watched, 200), 20);
  // A kill by the kernel is seen all the same, and the memory that comes back.
  watched.reading = FULL_AFTER_KILL;
  await guarded.pass(10);
  assert.equal(await guarded.looks(watched, 100), 50);
  watched.reading = { ...EMPTY, oomKills: 8 };
  await guarded.pass(10);
  assert.deepEqual(watched.said, ["free k", "host 1 k"]);
  // What fills it next may be worth killing.
  await guarded.pass(100);
  watched.said.length = 0;
  watched.answerMs = 5_000;
  watched.reading = FULL_AFTER_KILL;
  await guarded.pass(200);
  assert.deepEqual(watched.said, ["free k"]);
  assert.equal(await guarded.looks(watched, 200), 100);
});

test("an agent that does not answer has not said that there is nothing to kill", async (t) => {
  await using guarded = new Guarded(t);
  const watched = guarded.add("i1", { reading: FULL });
  watched.isDeaf = true;
  await guarded.pass(200);
  assert.equal(await guarded.looks(watched, 200), 100);
  assert.deepEqual(watched.said, ["free k"]);
  await guarded.pass(1_000);
  assert.deepEqual(watched.said, ["free k", "free k"]);
});

test("kills from before a machine could first be read are not told", async (t) => {
  await using guarded = new Guarded(t);
  const watched = guarded.add("i1");
  watched.isUnreadable = true;
  await guarded.pass(150);
  watched.isUnreadable = false;
  await guarded.pass(150);
  watched.reading = { ...EMPTY, oomKills: 8 };
  await guarded.pass(150);
  assert.deepEqual(watched.said, ["host 1 k"]);
});

test("however many machines are near their limits, looking at them takes a tenth of the time, and each has its turn", async (t) => {
  await using guarded = new Guarded(t);
  const all = Array.from({ length: 20 }, (_, at) => guarded.add(`i${at}`, { reading: FULL, lookMs: 1 }));
  for (const watched of all) watched.answerMs = 5_000;
  await guarded.pass(150);
  const before = all.map((watched) => watched.looks);
  await guarded.pass(2_000);
  const counts = all.map((watched, at) => watched.looks - (before[at] ?? 0));
  assert.ok(
    counts.every((count) => count >= 9 && count <= 11),
    `${counts}`,
  );
});

test("a machine that has ended is let be", async (t) => {
  await using guarded = new Guarded(t);
  const watched = guarded.add("i1", { reading: FULL });
  watched.reading = undefined;
  await guarded.pass(1_000);
  assert.deepEqual(watched.said, []);
  assert.ok(watched.looks <= 10, `${watched.looks} looks`);
});

/** Machines under a guard, with a clock of their own, beside one that cannot be looked at: it keeps nobody from looking at the others. */
class Guarded implements AsyncDisposable {
  readonly #entries = new Entries();
  readonly #guard: MemoryGuard;
  readonly #tick: (ms: number) => void;
  nowMs = 0;

  constructor(t: TestContext) {
    t.mock.timers.enable({ apis: ["setTimeout"] });
    t.mock.method(performance, "now", () => this.nowMs);
    const cpuUsage = (before = { user: 0 }) => ({ user: this.nowMs * 1000 - before.user, system: 0 });
    t.mock.method(process, "threadCpuUsage", cpuUsage as typeof process.threadCpuUsage);
    this.#tick = (ms) => t.mock.timers.tick(ms);
    this.add("broken").isUnreadable = true;
    this.#guard = new MemoryGuard({ entries: this.#entries, logger: silentLogger });
  }

  add(id: string, options: { reading?: MemoryReading; lookMs?: number } = {}): Watched {
    const watched = new Watched(this, id as SandboxId, options);
    this.#entries.add(watched.entry);
    return watched;
  }

  async pass(ms: number): Promise<void> {
    const untilMs = this.nowMs + ms;
    while (this.nowMs < untilMs) {
      this.nowMs += 1;
      this.#tick(1);
      // What was waited for goes on.
      await new Promise<void>((resolve) => setImmediate(resolve));
    }
  }

  async looks(watched: Watched, withinMs: number): Promise<number> {
    const before = watched.looks;
    await this.pass(withinMs);
    return watched.looks - before;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const closed = this.#guard.close();
    await this.pass(5_000);
    await closed;
  }
}

class Watched {
  readonly entry: Entry;
  /** As the machine reads now; undefined: it has ended. */
  reading: MemoryReading | undefined;
  /** What the agent has been asked and told, with the key. */
  readonly said: string[] = [];
  /** How long the agent takes to free memory. */
  answerMs = 50;
  isDeaf = false;
  /** What it kills then. */
  victim: { pid: number; name: string; others: number; bytes: number } | undefined = {
    pid: 9,
    name: "bomb",
    others: 0,
    bytes: LIMIT_BYTES,
  };
  looks = 0;
  isUnreadable = false;

  constructor(
    clock: { nowMs: number },
    id: SandboxId,
    { reading = EMPTY, lookMs = 0 }: { reading?: MemoryReading; lookMs?: number },
  ) {
    this.reading = reading;
    this.entry = new Entry({
      initKey: "k",
      sandbox: { id, state: "running", spec: { resources: { memoryBytes: LIMIT_BYTES } } },
    } as SandboxRecord);
    const memory = (): MemoryReading | undefined => {
      clock.nowMs += lookMs;
      this.looks += 1;
      if (this.isUnreadable) throw new Error("as the test wants");
      return this.reading;
    };
    const guest = {
      freeMemory: async (key: string) => {
        this.said.push(`free ${key}`);
        // That of `node:timers/promises` would be a real one.
        await new Promise((resolve) => setTimeout(resolve, this.answerMs));
        if (this.isDeaf) throw new Error("as the test wants");
        if (this.victim !== undefined) this.reading = { oomKills: 0, ...this.reading, usedBytes: 0 };
        return this.victim;
      },
      hostKilled: async (count: number, key: string) => {
        this.said.push(`host ${count} ${key}`);
      },
    };
    this.entry.incarnation = { machine: { memory }, guest } as unknown as Incarnation;
  }
}
