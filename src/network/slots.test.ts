import assert from "node:assert/strict";
import { test } from "node:test";
import { errorKind, type NetworkPolicy } from "#domain";
import { silentLogger } from "#lib/log";
import { serverNetwork } from "./addresses.ts";
import type { SlotCompanion } from "./network.ts";
import { SlotPool } from "./slots.ts";
import type { Wiring } from "./wiring.ts";

/** Keeps the same book as the kernel would, and is as strict: what is there cannot be made again. */
class FakeWiring implements Wiring {
  readonly mtuBytes = 1500;
  readonly there = new Map<number, NetworkPolicy>();
  readonly made: number[] = [];
  hostReady = false;
  atOnce = 0;
  mostAtOnce = 0;
  failing: "make" | "remove" | "setPolicy" | undefined;

  async prepareHost(): Promise<void> {
    this.hostReady = true;
  }
  async clearHost(): Promise<void> {
    this.hostReady = false;
  }
  async make(index: number): Promise<void> {
    await this.#work("make", () => {
      assert.ok(this.hostReady && !this.there.has(index));
      this.there.set(index, { internet: true });
      this.made.push(index);
    });
  }
  async remove(indexes: readonly number[]): Promise<void> {
    await this.#work("remove", () => {
      for (const index of indexes) this.there.delete(index);
    });
  }
  async setPolicy(index: number, policy: NetworkPolicy): Promise<void> {
    await this.#work("setPolicy", () => this.there.set(index, policy));
  }
  async adopt(index: number, policy: NetworkPolicy): Promise<void> {
    await this.setPolicy(index, policy);
  }
  async inspect(): Promise<ReadonlyMap<number, "whole" | "broken">> {
    return new Map([...this.there.keys()].map((index) => [index, index === 9 ? "broken" : "whole"]));
  }
  async #work(name: "make" | "remove" | "setPolicy", work: () => void): Promise<void> {
    this.atOnce += 1;
    this.mostAtOnce = Math.max(this.mostAtOnce, this.atOnce);
    await new Promise(setImmediate);
    this.atOnce -= 1;
    if (this.failing === name) throw new Error(`${name} fails`);
    work();
  }
}

const OPEN: NetworkPolicy = { internet: true };
const SHUT: NetworkPolicy = { internet: false };

async function openPool(ready: number, max: number): Promise<{ pool: SlotPool; wiring: FakeWiring }> {
  const wiring = new FakeWiring();
  const pool = new SlotPool({ wiring, server: serverNetwork(2), log: silentLogger, ready, max });
  await pool.recover([]);
  await pool.settled();
  return { pool, wiring };
}

test("keeps its stock, hands out each slot once, and works at most two at a time", async () => {
  const { pool, wiring } = await openPool(3, 20);
  assert.deepEqual(pool.stats(), { free: 20, total: 20, ready: 3 });
  const slots = await Promise.all(Array.from({ length: 20 }, () => pool.acquire(OPEN)));
  assert.equal(new Set(slots.map(({ index }) => index)).size, 20);
  assert.deepEqual(slots[0], {
    index: 0,
    hostAddress: "198.18.16.2",
    netnsPath: "/run/netns/ae2-s0",
    device: "eth0",
    macAddress: "02:ae:00:00:00:01",
    address: "169.254.0.21/30",
    gateway: "169.254.0.22",
    gatewayMacAddress: "02:ae:00:00:00:02",
    mtuBytes: 1500,
  });
  await assert.rejects(pool.acquire(OPEN), (error) => errorKind(error) === "exhausted");
  await Promise.all(slots.map((slot) => pool.release(slot)));
  await pool.settled();
  assert.deepEqual(pool.stats(), { free: 20, total: 20, ready: 3 });
  assert.equal(wiring.there.size, 3);
  assert.equal(wiring.mostAtOnce, 2);
  await pool.close({ remove: true });
  assert.equal(wiring.there.size, 0);
  assert.equal(wiring.hostReady, false);
});

test("a companion works in slots that wait, and never makes anybody wait", async () => {
  const wiring = new FakeWiring();
  const working = Promise.withResolvers<void>();
  const seen: string[] = [];
  const companion: SlotCompanion = {
    async prepare({ index }) {
      seen.push(`+${index}`);
      if (index === 0) throw new Error("cannot");
      await working.promise;
    },
    async unprepare({ index }) {
      assert.ok(wiring.there.has(index), "the slot was removed before");
      seen.push(`-${index}`);
    },
  };
  const pool = new SlotPool({ wiring, server: serverNetwork(2), log: silentLogger, ready: 2, max: 4, companion });
  await pool.recover([]);
  while (seen.length < 2) await new Promise(setImmediate);
  // One that could not be prepared, and one that still is: both are as good as any.
  const taken = [await pool.acquire(OPEN), await pool.acquire(OPEN), await pool.acquire(OPEN)];
  assert.deepEqual(seen.slice(0, 2).sort(), ["+0", "+1"]);
  working.resolve();
  for (const slot of taken) await pool.release(slot);
  await pool.settled();
  await pool.close({ remove: true });
  for (const { index } of taken) assert.ok(seen.includes(`-${index}`), `slot ${index} was removed with what was in it`);
  assert.equal(wiring.there.size, 0);
});

test("a slot given back is made anew before anyone gets it, and others come first", async () => {
  const { pool, wiring } = await openPool(0, 2);
  const first = await pool.acquire(SHUT);
  assert.deepEqual(wiring.there.get(first.index), SHUT);
  await pool.release(first);
  const second = await pool.acquire(OPEN);
  assert.notEqual(second.index, first.index);
  const again = await pool.acquire(OPEN);
  assert.equal(again.index, first.index);
  assert.deepEqual(wiring.made, [0, 1, 0]);
  assert.deepEqual(wiring.there.get(again.index), OPEN);

  await pool.release(first);
  await assert.rejects(pool.acquire(OPEN), "a late second release took the slot from its new holder");
  await pool.close();
});

test("a set-up that fails is told to who waits, and does not lose the slot", async () => {
  const { pool, wiring } = await openPool(0, 1);
  wiring.failing = "make";
  await assert.rejects(pool.acquire(OPEN), (error) => errorKind(error) === "unavailable");
  wiring.failing = "setPolicy";
  await assert.rejects(pool.acquire(SHUT), (error) => errorKind(error) === "unavailable");
  wiring.failing = undefined;
  const slot = await pool.acquire(SHUT);
  assert.deepEqual(wiring.there.get(slot.index), SHUT);
  await pool.close();
});

test("a failing host is tried again later, not in a loop, and closing does not wait for it", async () => {
  const { pool, wiring } = await openPool(1, 2);
  const slot = await pool.acquire(OPEN);
  await pool.settled();
  wiring.failing = "remove";
  await pool.release(slot);
  await pool.settled();
  assert.ok(wiring.there.has(slot.index));
  wiring.failing = undefined;
  await pool.close();
  assert.ok(!wiring.there.has(slot.index));
});

test("recovery keeps what is held and whole, with its policy, and removes the rest", async () => {
  const wiring = new FakeWiring();
  for (const index of [1, 2, 9, 300]) wiring.there.set(index, OPEN);
  const pool = new SlotPool({ wiring, server: serverNetwork(2), log: silentLogger, ready: 1, max: 4 });
  await assert.rejects(pool.acquire(OPEN), (error) => errorKind(error) === "internal");
  const kept = await pool.recover([
    { index: 2, policy: SHUT },
    { index: 9, policy: OPEN },
    { index: 3, policy: OPEN },
  ]);
  await pool.settled();
  assert.deepEqual(
    kept.map(({ index }) => index),
    [2],
  );
  assert.deepEqual([...wiring.there.keys()].sort(), [0, 2]);
  assert.deepEqual(wiring.there.get(2), SHUT);
  assert.deepEqual(pool.stats(), { free: 3, total: 4, ready: 1 });
  await pool.close({ remove: true });
  assert.deepEqual([...wiring.there.keys()], [2]);
  assert.ok(wiring.hostReady, "shared parts stay while a slot is held");
});

test("closing sends those who wait away", async () => {
  const { pool } = await openPool(0, 2);
  const waiting = assert.rejects(pool.acquire(OPEN), (error) => errorKind(error) === "unavailable");
  await pool.close();
  await waiting;
  await assert.rejects(pool.acquire(OPEN), (error) => errorKind(error) === "unavailable");
});
