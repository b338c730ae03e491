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
  assert.equal(lookAgainMs(0), 5);
  // Doubling 1 GiB in half a second is still noticed in time.
  assert.ok(lookAgainMs(512 * MIB) <= 260);
});

test("one kill at a time near the limit, also while a snapshot is made; the kernel's own are told, those from before are not", async () => {
  let reading: MemoryReading | undefined = { usedBytes: 0, oomKills: 7 };
  const said: string[] = [];
  const guest = {
    async freeMemory(key: string) {
      said.push(`free ${key}`);
      await sleep(50);
      reading = { usedBytes: 0, oomKills: 7 };
      return { pid: 9, name: "bomb", others: 0, bytes: LIMIT_BYTES };
    },
    async hostKilled(count: number, key: string) {
      said.push(`host ${count} ${key}`);
    },
  };
  const entry = new Entry({
    initKey: "k",
    sandbox: { id: "i1", state: "running", spec: { resources: { memoryBytes: LIMIT_BYTES } } },
  } as SandboxRecord);
  entry.incarnation = { machine: { memory: () => reading }, guest } as unknown as Incarnation;
  const entries = new Entries();
  // One that cannot be looked at keeps nobody from looking at the others.
  const broken = new Entry({ ...entry.record, sandbox: { ...entry.sandbox, id: "i0" as SandboxId } });
  const memory = (): never => {
    throw new Error("as the test wants");
  };
  broken.incarnation = { machine: { memory }, guest } as unknown as Incarnation;
  entries.add(broken);
  entries.add(entry);
  const guard = new MemoryGuard({ entries, logger: silentLogger });
  const saidCount = async (count: number): Promise<void> => {
    for (let tries = 0; said.length < count && tries < 300; tries += 1) await sleep(10);
  };
  await sleep(150);
  assert.deepEqual(said, []);
  reading = { usedBytes: LIMIT_BYTES - 20 * MIB, oomKills: 7 };
  await saidCount(1);
  await sleep(200);
  assert.deepEqual(said, ["free k"]);
  entry.update({ state: "snapshotting" });
  reading = { usedBytes: 0, oomKills: 9 };
  await saidCount(2);
  assert.deepEqual(said, ["free k", "host 2 k"]);
  reading = undefined;
  await guard.close();
});
