import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
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
  readonly renewals: (readonly [removed: readonly number[], made: readonly number[]])[] = [];
  hostReady = false;
  atOnce = 0;
  mostAtOnce = 0;
  failing: "make" | "remove" | "setPolicy" | undefined;
  unmakeable: number | undefined;
  unremovable: number | undefined;

  async prepareHost(): Promise<void> {
    this.hostReady = true;
  }
  async clearHost(): Promise<void> {
    this.hostReady = false;
  }
  async renew(removed: readonly number[], made: readonly number[]): Promise<void> {
    const does = [...(removed.length > 0 ? ["remove"] : []), ...(made.length > 0 ? ["make"] : [])];
    await this.#work(does, () => {
      if (this.unmakeable !== undefined && made.includes(this.unmakeable)) throw new Error("the name is taken");
      if (this.unremovable !== undefined && removed.includes(this.unremovable)) throw new Error("it is busy");
      this.renewals.push([removed, made]);
      for (const index of removed) this.there.delete(index);
      for (const index of made) {
        assert.ok(this.hostReady && !this.there.has(index));
        this.there.set(index, { internet: true });
        this.made.push(index);
      }
    });
  }
  async setPolicy(index: number, policy: NetworkPolicy): Promise<void> {
    await this.#work(["setPolicy"], () => this.there.set(index, policy));
  }
  async adopt(index: number, policy: NetworkPolicy): Promise<void> {
    await this.setPolicy(index, policy);
  }
  async inspect(): Promise<ReadonlyMap<number, "whole" | "broken">> {
    return new Map([...this.there.keys()].map((index) => [index, index === 9 ? "broken" : "whole"]));
  }
  async #work(does: readonly string[], work: () => void): Promise<void> {
    this.atOnce += 1;
    this.mostAtOnce = Math.max(this.mostAtOnce, this.atOnce);
    await new Promise(setImmediate);
    this.atOnce -= 1;
    if (this.failing !== undefined && does.includes(this.failing)) throw new Error(`${this.failing} fails`);
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

test("what nobody waits for is done for several slots at once; after a failure for one at a time", async () => {
  const { pool, wiring } = await openPool(3, 8);
  const slots = await Promise.all(Array.from({ length: 3 }, () => pool.acquire(OPEN)));
  for (const slot of slots) await pool.release(slot);
  wiring.renewals.length = 0;
  await pool.settled();
  assert.deepEqual(wiring.renewals, [
    [
      [0, 1, 2],
      [3, 4, 5],
    ],
  ]);

  // One that cannot be made, whoever has its name, keeps none of the others from it.
  wiring.unmakeable = 6;
  for (const slot of await Promise.all(Array.from({ length: 3 }, () => pool.acquire(OPEN)))) await pool.release(slot);
  await pool.settled();
  assert.equal(pool.stats().ready, 0);
  while (pool.stats().ready < 3) await delay(10);
  await pool.close();
});

test("who waits has a slot made alone, whatever is under way", async () => {
  const { pool, wiring } = await openPool(2, 8);
  const used = [await pool.acquire(OPEN), await pool.acquire(OPEN)];
  for (const slot of used) await pool.release(slot);
  wiring.renewals.length = 0;
  const settling = pool.settled();
  const slots = await Promise.all(Array.from({ length: 3 }, () => pool.acquire(OPEN)));
  await settling;
  const [alone, batch] = wiring.renewals.slice(0, 2).sort(([, made], [, others]) => made.length - others.length);
  assert.deepEqual(alone, [[], [4]]);
  assert.deepEqual(batch, [
    [0, 1],
    [2, 3],
  ]);
  assert.equal(new Set(slots.map(({ index }) => index)).size, 3);
  assert.equal(wiring.mostAtOnce, 2);
  await pool.close();
});

test("while sandboxes start the stock is not filled, unless it runs low, and not for ever", async (t) => {
  const wiring = new FakeWiring();
  let isBusy = true;
  const pool = new SlotPool({
    wiring,
    server: serverNetwork(2),
    log: silentLogger,
    ready: 4,
    max: 16,
    isBusy: () => isBusy,
  });
  await pool.recover([]);
  await pool.settled();
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const readyAfter = async (ms: number): Promise<number> => {
    for (let passedMs = 0; passedMs < ms; passedMs += 500) {
      t.mock.timers.tick(500);
      for (let turn = 0; turn < 10; turn += 1) await new Promise(setImmediate);
    }
    return pool.stats().ready;
  };
  await pool.acquire(OPEN);
  assert.equal(await readyAfter(1_500), 3);
  isBusy = false;
  assert.equal(await readyAfter(500), 4);

  isBusy = true;
  await pool.acquire(OPEN);
  assert.equal(await readyAfter(1_500), 3);
  assert.equal(await readyAfter(1_000), 4);

  for (let taken = 0; taken < 3; taken += 1) await pool.acquire(OPEN);
  assert.equal(await readyAfter(500), 4);
  await pool.close();
});

test("one that cannot be removed holds up nobody: not who waits, and not the stock", async () => {
  const { pool, wiring } = await openPool(2, 8);
  const [stays, goes] = [await pool.acquire(OPEN), await pool.acquire(OPEN)];
  wiring.unremovable = stays.index;
  await pool.release(stays);
  await pool.release(goes);
  const waiting = Array.from({ length: 3 }, () => pool.acquire(OPEN));
  const slots = await Promise.all(waiting);
  assert.equal(new Set(slots.map(({ index }) => index)).size, 3);
  await pool.settled();
  while (pool.stats().ready < 2) await delay(10);
  assert.ok(wiring.there.has(stays.index) && !wiring.there.has(goes.index));
  wiring.unremovable = undefined;
  await pool.close({ remove: true });
  assert.deepEqual([...wiring.there.keys()].sort(), slots.map(({ index }) => index).sort());
});

test("one that could not be removed is soon tried again, and less and less often (OPS-05)", {
  timeout: 10_000,
}, async () => {
  const { pool, wiring } = await openPool(0, 2);
  const slot = await pool.acquire(OPEN);
  const triedAtMs: number[] = [];
  const renew = wiring.renew.bind(wiring);
  wiring.renew = async (removed, made) => {
    triedAtMs.push(performance.now());
    if (triedAtMs.length < 3) throw new Error("whoever was to do it has died");
    await renew(removed, made);
  };
  await pool.release(slot);
  await pool.settled();
  while (wiring.there.size > 0) await delay(10);
  const [firstMs = 0, secondMs = 0, thirdMs = 0] = triedAtMs;
  assert.equal(triedAtMs.length, 3);
  assert.ok(thirdMs - secondMs > secondMs - firstMs, triedAtMs.join());
  assert.equal(pool.stats().free, 2);
  await pool.close({ remove: true });
});

test("nothing is done ahead in a slot that somebody holds by then", async () => {
  const wiring = new FakeWiring();
  const begun = Promise.withResolvers<void>();
  const working = Promise.withResolvers<void>();
  const prepared: number[] = [];
  const companion: SlotCompanion = {
    async prepare({ index }) {
      prepared.push(index);
      begun.resolve();
      await working.promise;
    },
    async unprepare() {},
  };
  const pool = new SlotPool({ wiring, server: serverNetwork(2), log: silentLogger, ready: 4, max: 4, companion });
  await pool.recover([]);
  await begun.promise;
  // All can be taken while the first of them is worked in.
  await Promise.all(Array.from({ length: 4 }, () => pool.acquire(OPEN)));
  working.resolve();
  await pool.settled();
  assert.equal(prepared.length, 1);
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
