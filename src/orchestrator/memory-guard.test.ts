import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { MIB, type SandboxId } from "#domain";
import type { MemoryReading } from "#driver";
import { silentLogger } from "#lib/log";
import { Entries } from "./entries.ts";
import { Entry, type Incarnation } from "./entry.ts";
import { lookAgainMs, MemoryGuard, spareOf } from "./memory-guard.ts";
import type { SandboxRecord } from "./record.ts";

const LIMIT_BYTES = 256 * MIB;

test("the reserve is an eighth of the limit, within bounds; the nearer to it, the sooner the next look", () => {
  const spareMib = (limitMib: number) => spareOf({ usedBytes: 0, oomKills: 0 }, limitMib * MIB) / MIB;
  assert.deepEqual([64, 256, 1024, 8192].map(spareMib), [48, 224, 960, 8128]);
  assert.equal(lookAgainMs(4096 * MIB), 500);
  assert.equal(lookAgainMs(0), 2);
  // Doubling 1 GiB in half a second is still noticed in time.
  assert.ok(lookAgainMs(512 * MIB) <= 260);
});

test("one kill at a time near the limit, also while a snapshot is made; the kernel's own are told, those from before are not", async () => {
  await using watched = new WatchedSandbox();
  await sleep(150);
  assert.deepEqual(watched.said, []);
  watched.reading = { usedBytes: LIMIT_BYTES - 20 * MIB, oomKills: 7 };
  await watched.saidCount(1);
  await sleep(200);
  assert.deepEqual(watched.said, ["free k"]);
  watched.entry.update({ state: "snapshotting" });
  watched.reading = { usedBytes: 0, oomKills: 9 };
  await watched.saidCount(2);
  assert.deepEqual(watched.said, ["free k", "host 2 k"]);
});

test("the agent is told of the kernel's kills once their memory is back, or after a while; until then nothing else is asked of it", async () => {
  await using watched = new WatchedSandbox();
  await sleep(150);
  for (const [round, isBack] of [true, false].entries()) {
    watched.said.length = 0;
    const killedAtMs = performance.now();
    watched.reading = { usedBytes: LIMIT_BYTES, oomKills: 8 + round };
    if (isBack) {
      await watched.looked(5);
      assert.deepEqual(watched.said, []);
      watched.reading = { usedBytes: 0, oomKills: 8 + round };
    }
    await watched.saidCount(isBack ? 1 : 2);
    assert.deepEqual(watched.said, isBack ? ["host 1 k"] : ["host 1 k", "free k"]);
    assert.ok(isBack || performance.now() - killedAtMs >= 200);
  }
});

test("a machine is looked at while its agent, which is late, is asked to free memory: once", async () => {
  await using watched = new WatchedSandbox();
  watched.answerMs = 300;
  watched.reading = { usedBytes: LIMIT_BYTES, oomKills: 7 };
  await watched.saidCount(1);
  const before = watched.looks;
  await sleep(200);
  assert.ok(watched.looks - before >= 5, `${watched.looks - before} looks`);
  assert.deepEqual(watched.said, ["free k"]);
});

test("a machine that could not be looked at while its agent was asked has it asked again", async () => {
  await using watched = new WatchedSandbox();
  watched.answerMs = 200;
  watched.reading = { usedBytes: LIMIT_BYTES, oomKills: 7 };
  await watched.saidCount(1);
  watched.isUnreadable = true;
  await sleep(300);
  watched.isUnreadable = false;
  watched.reading = { usedBytes: LIMIT_BYTES, oomKills: 7 };
  await watched.saidCount(2);
  assert.deepEqual(watched.said, ["free k", "free k"]);
});

test("a kill by the kernel while the agent finds nothing to kill is seen at once, and told", async () => {
  await using watched = new WatchedSandbox();
  watched.victim = undefined;
  watched.reading = { usedBytes: LIMIT_BYTES, oomKills: 7 };
  await watched.saidCount(1);
  await sleep(150);
  const before = watched.looks;
  watched.reading = { usedBytes: LIMIT_BYTES, oomKills: 8 };
  await watched.saidCount(2);
  assert.deepEqual(watched.said, ["free k", "host 1 k"]);
  assert.ok(watched.looks - before >= 5, `${watched.looks - before} looks`);
});

test("kills from before a machine could first be read are not told", async () => {
  await using watched = new WatchedSandbox();
  watched.isUnreadable = true;
  await watched.looked(1);
  watched.isUnreadable = false;
  await watched.looked(2);
  watched.reading = { usedBytes: 0, oomKills: 8 };
  await watched.saidCount(1);
  assert.deepEqual(watched.said, ["host 1 k"]);
});

/** A sandbox under a guard, beside one that cannot be looked at: it keeps nobody from looking at the other. */
class WatchedSandbox implements AsyncDisposable {
  /** As the machine reads now. */
  reading: MemoryReading | undefined = { usedBytes: 0, oomKills: 7 };
  /** What the agent has been asked and told, with the key. */
  readonly said: string[] = [];
  readonly entry: Entry;
  /** How long the agent takes to free memory. */
  answerMs = 50;
  /** What it kills then. */
  victim: { pid: number; name: string; others: number; bytes: number } | undefined = {
    ...{ pid: 9, name: "bomb", others: 0, bytes: LIMIT_BYTES },
  };
  looks = 0;
  isUnreadable = false;
  readonly #guard: MemoryGuard;

  constructor() {
    const guest = {
      freeMemory: async (key: string) => {
        this.said.push(`free ${key}`);
        await sleep(this.answerMs);
        if (this.victim !== undefined) this.reading = { usedBytes: 0, oomKills: this.reading?.oomKills ?? 0 };
        return this.victim;
      },
      hostKilled: async (count: number, key: string) => {
        this.said.push(`host ${count} ${key}`);
      },
    };
    this.entry = new Entry({
      initKey: "k",
      sandbox: { id: "i1", state: "running", spec: { resources: { memoryBytes: LIMIT_BYTES } } },
    } as SandboxRecord);
    const look = (): MemoryReading | undefined => {
      this.looks += 1;
      if (this.isUnreadable) throw new Error("as the test wants");
      return this.reading;
    };
    this.entry.incarnation = { machine: { memory: look }, guest } as unknown as Incarnation;
    const broken = new Entry({
      ...this.entry.record,
      sandbox: { ...this.entry.sandbox, id: "i0" as SandboxId },
    });
    const memory = (): never => {
      throw new Error("as the test wants");
    };
    broken.incarnation = { machine: { memory }, guest } as unknown as Incarnation;
    const entries = new Entries();
    entries.add(broken);
    entries.add(this.entry);
    this.#guard = new MemoryGuard({ entries, logger: silentLogger });
  }

  async saidCount(count: number): Promise<void> {
    for (let tries = 0; this.said.length < count && tries < 300; tries += 1) await sleep(10);
  }

  /** So many times more. */
  async looked(times: number): Promise<void> {
    const until = this.looks + times;
    for (let tries = 0; this.looks < until && tries < 3000; tries += 1) await sleep(1);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.reading = undefined;
    await this.#guard.close();
  }
}
