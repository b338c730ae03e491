import assert from "node:assert/strict";
import { afterEach, describe, test } from "node:test";
import { DEFAULT_RESOURCES, MIB, type SandboxId } from "#domain";
import type { Machine } from "#driver";
import { createFakeDriver, FakeHost } from "#driver/fake";
import { createLogger, silentLogger } from "#lib/log";
import { Background } from "../background.ts";
import { Entry, type Incarnation } from "../entry.ts";
import type { SandboxRecord } from "../record.ts";
import { Bench, until } from "../testing/bench.ts";
import { isWorthTaking, Reclaimer } from "./reclaimer.ts";

const MUCH_BYTES = 64 * MIB;

test("much is 32 MiB, and twice what it needs to be awake", () => {
  assert.equal(isWorthTaking(32 * MIB - 1, 0), false);
  assert.equal(isWorthTaking(32 * MIB, 0), true);
  assert.equal(isWorthTaking(32 * MIB, 16 * MIB), true);
  assert.equal(isWorthTaking(79 * MIB, 40 * MIB), false);
  assert.equal(isWorthTaking(80 * MIB, 40 * MIB), true);
});

describe("the memory of one that stands still", () => {
  /** One that holds much is offered. `take`: what the kernel does when it is asked, by its own `reclaim`. `bringBack`: what happens
   *  instead while what its runtime needs comes back. */
  async function offered({
    take = (reclaim: () => Promise<void>): Promise<void> => reclaim(),
    atOnceBytes = Number.POSITIVE_INFINITY,
    hasRoom = true,
    neededBytes = 0,
    closing = new AbortController(),
    bringBack = undefined as ((entry: Entry) => Promise<void>) | undefined,
  } = {}) {
    const host = new FakeHost();
    host.memoryBytes = MUCH_BYTES;
    host.reclaimAtOnceBytes = atOnceBytes;
    const machine = await createFakeDriver({ host }).boot({ id: "m1", resources: DEFAULT_RESOURCES } as never);
    const { reclaim } = machine;
    machine.reclaim = () => take(() => reclaim.call(machine));
    const entry = new Entry({ sandbox: { id: "i1", state: "frozen" } } as SandboxRecord);
    entry.frozen = { machine } as Incarnation;
    if (bringBack !== undefined) machine.bringBackRuntime = () => bringBack(entry);
    const logged: string[] = [];
    const logger = createLogger("info", (line) => logged.push(line));
    const background = new Background(logger);
    const swap = { room: async () => hasRoom };
    const reclaimer = new Reclaimer({ swap, background, logger, signal: closing.signal });
    const leftBytes: number[] = [];
    let broughtBackBefore = 0;
    const onTaken = (bytes: number): void => {
      leftBytes.push(bytes);
      broughtBackBefore = host.broughtBack.length;
    };
    reclaimer.offer(entry, { neededBytes, onTaken });
    await background.close();
    assert.equal(host.broughtBack.length, broughtBackBefore, "something was brought back when it was of no use");
    return { turns: host.reclaimed.length, heldBytes: host.heldBytes("m1"), leftBytes, logged, broughtBackBefore };
  }

  test("is taken", async () => {
    const { turns, heldBytes, leftBytes, logged } = await offered();
    assert.deepEqual([turns, heldBytes, leftBytes, logged], [1, 0, [0], []]);
  });

  test("comes back in part, what its runtime needs, before its moment, which comes also where that fails", async () => {
    assert.equal((await offered()).broughtBackBefore, 1);
    const { leftBytes, logged } = await offered({ bringBack: () => Promise.reject(new Error("unknown method")) });
    assert.deepEqual(leftBytes, [0]);
    assert.match(logged.join(), /"warn".*is left in swap.*unknown method/);
  });

  for (const [what, happen] of [
    ["is woken", (entry: Entry) => entry.update({ state: "thawing" })],
    ["is woken and frozen again", (entry: Entry) => Object.assign(entry, { frozen: { ...entry.frozen } })],
    ["is to end", (entry: Entry) => Object.assign(entry, { doomed: true })],
  ] as const) {
    test(`makes no moment where the sandbox ${what} while that comes back`, async () => {
      const comesBack = async (entry: Entry): Promise<void> => void happen(entry);
      const breaksOff = async (entry: Entry): Promise<void> => {
        happen(entry);
        throw new Error("it has ended");
      };
      for (const bringBack of [comesBack, breaksOff]) {
        const { turns, leftBytes, logged } = await offered({ bringBack });
        assert.deepEqual([turns, leftBytes, logged], [1, [], []]);
      }
    });
  }

  test("is taken on and on where the kernel gives up early, until little is left", async () => {
    const { turns, heldBytes, leftBytes } = await offered({ atOnceBytes: 12 * MIB });
    assert.deepEqual([turns, heldBytes, leftBytes], [3, 28 * MIB, [0]]);
  });

  test("stays where the kernel takes none of it", async () => {
    const { turns, leftBytes } = await offered({ atOnceBytes: 0 });
    assert.deepEqual([turns, leftBytes], [4, []]);
  });

  test("counts as taken when it is gone, not when the kernel was asked", async () => {
    let asked = 0;
    const take = async (): Promise<void> => {
      asked += 1;
    };
    assert.deepEqual((await offered({ take })).leftBytes, []);
    assert.equal(asked, 4);
  });

  test("that goes in part is said to be left but for that", async () => {
    let turn = 0;
    const take = async (reclaim: () => Promise<void>): Promise<void> => {
      turn += 1;
      if (turn === 1) await reclaim();
    };
    const { heldBytes, leftBytes, logged } = await offered({ atOnceBytes: 12 * MIB, take });
    assert.deepEqual([turn, heldBytes, leftBytes, logged], [5, 52 * MIB, [52 * MIB], []]);
  });

  test("that goes by drops holds up the others for a while only", async () => {
    const { turns, leftBytes } = await offered({ atOnceBytes: MIB });
    assert.deepEqual([turns, leftBytes], [12, [52 * MIB]]);
  });

  test("stays where there is no room, where it is needed, and where it cannot be taken", async () => {
    assert.equal((await offered({ hasRoom: false })).turns, 0);
    assert.equal((await offered({ neededBytes: MUCH_BYTES / 2 + 1 })).turns, 0);
    const { leftBytes, logged } = await offered({ take: () => Promise.reject(new Error("as the test wants")) });
    assert.deepEqual(leftBytes, []);
    assert.equal(logged.length, 1);
    assert.match(logged[0] ?? "", /"warn".*keeps its memory.*as the test wants/);
  });

  test("is let go of when the server closes", async () => {
    const closing = new AbortController();
    const take = (reclaim: () => Promise<void>): Promise<void> => {
      closing.abort();
      return reclaim();
    };
    const { turns, leftBytes } = await offered({ atOnceBytes: 12 * MIB, take, closing });
    assert.deepEqual([turns, leftBytes], [1, []]);
    assert.equal((await offered({ closing })).turns, 0);
  });
});

describe("a frozen sandbox whose memory is taken", () => {
  let bench: Bench;
  let machine: Machine;
  let id: SandboxId;
  /** Of its machine, since it was made. */
  let thaws: number;

  afterEach(() => bench[Symbol.asyncDispose]());

  /** It is frozen for the first time. */
  async function frozen({
    bytes = MUCH_BYTES,
    atOnceBytes = Number.POSITIVE_INFINITY,
    idleAfterMs = 60,
    failure = undefined as Error | undefined,
  } = {}): Promise<void> {
    bench = await Bench.open({ idleAfterMs, swap: { room: async () => true } });
    bench.host.memoryBytes = bytes;
    bench.host.reclaimAtOnceBytes = atOnceBytes;
    if (failure !== undefined) bench.host.failNext("reclaim", failure);
    ({ id } = await bench.create());
    const made = bench.host.running.get(`${id}-0001`);
    assert.ok(made !== undefined);
    machine = made;
    thaws = 0;
    const { resume } = machine;
    machine.resume = async () => {
      await resume.call(machine);
      thaws += 1;
    };
    await until("the freeze", () => bench.stateOf(id) === "frozen");
  }

  async function moments(count: number): Promise<void> {
    const before = thaws;
    await until("moments", () => thaws >= before + count);
    await until("the freeze after that", () => bench.stateOf(id) === "frozen");
  }

  test("is left alone until it holds much more than it needs to be awake", async () => {
    await frozen();
    bench.host.neededBytes = MUCH_BYTES;
    await until("the first time", () => bench.host.reclaimed.length === 1);
    await moments(3);
    assert.equal(bench.host.reclaimed.length, 1);
    bench.host.memoryBytes = 4 * MUCH_BYTES;
    await until("the second time", () => bench.host.reclaimed.length === 2);
  });

  test("gets back what it needs to be awake at once, not when its next moment is due", async () => {
    const idleAfterMs = 600;
    await frozen({ idleAfterMs });
    const frozenAtMs = performance.now();
    await until("what it needs", () => bench.host.heldBytes(machine.id) === bench.host.neededBytes);
    assert.equal(bench.host.reclaimed.length, 1);
    // The next one would be due after 2 × idleAfterMs.
    assert.ok(performance.now() - frozenAtMs < 1.5 * idleAfterMs);
    await until("the freeze after that", () => bench.stateOf(id) === "frozen");
  });

  test("is asked for what the kernel left when it is frozen later, not right after", async () => {
    // The taking is over before a moment is due.
    await frozen({ idleAfterMs: 300, atOnceBytes: 12 * MIB });
    await until("the first turn", () => bench.host.reclaimed.length === 1);
    bench.host.reclaimAtOnceBytes = 0;
    await moments(1);
    assert.equal(bench.host.reclaimed.length, 5);
    bench.host.reclaimAtOnceBytes = Number.POSITIVE_INFINITY;
    await moments(1);
    await until("the rest to go", () => bench.host.reclaimed.length === 6);
  });

  test("that does something in the moment after is left alone too: what it needs is known", async () => {
    await frozen();
    bench.host.neededBytes = MUCH_BYTES;
    const { stats } = machine;
    let [sinceThaw, cpuUsec] = [0, 0];
    machine.stats = async () => {
      if (thaws === 1) sinceThaw += 1;
      // The first reading is that of its thaw.
      if (sinceThaw === 2) cpuUsec = 1_000_000;
      return { ...(await stats.call(machine)), cpuUsec };
    };
    await moments(3);
    assert.equal(cpuUsec, 1_000_000);
    assert.equal(bench.host.reclaimed.length, 1);
  });

  test("may end in the moment that follows", async (t) => {
    const { mock } = t.mock.method(silentLogger, "error");
    await frozen();
    const { stats } = machine;
    let sinceThaw = 0;
    machine.stats = () => {
      if (thaws === 1) sinceThaw += 1;
      return sinceThaw === 2 ? Promise.reject(new Error("its cgroup is gone")) : stats.call(machine);
    };
    await moments(2);
    assert.equal(mock.callCount(), 0);
  });

  test("keeps it when it cannot be taken, until the next time", async (t) => {
    const { mock } = t.mock.method(silentLogger, "warn");
    await frozen({ failure: new Error("as the test wants") });
    await until("the next time", () => bench.host.reclaimed.length === 1);
    assert.deepEqual(
      mock.calls.map(({ arguments: [message] }) => message),
      ["an idle sandbox keeps its memory"],
    );
  });

  test("keeps what is little", async () => {
    await frozen({ bytes: 8 * MIB });
    await moments(2);
    assert.deepEqual(bench.host.reclaimed, []);
  });
});
