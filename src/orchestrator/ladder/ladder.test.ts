import assert from "node:assert/strict";
import { afterEach, beforeEach, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import type { ReadyStats } from "#domain";
import { Bench, isKind, SNAPSHOT, until } from "../testing/bench.ts";

let bench: Bench;

beforeEach(async () => {
  bench = await Bench.open({ memoryBudgetMib: 1024 });
});
afterEach(() => bench[Symbol.asyncDispose]());

function ready(): ReadyStats {
  return bench.orchestrator.stats().ready;
}

async function readyClones(count: number): Promise<void> {
  await until(`${count} ready clones`, () => ready().clones === count);
}

/** The only ready clone's machine, after the first sandbox has been started and ended. */
async function oneReadyClone(): Promise<string> {
  const { id } = await bench.create();
  await readyClones(1);
  await bench.orchestrator.kill(id);
  await until("its end", () => bench.context.entries.all().length === 0);
  const [machine] = bench.machines();
  assert.ok(machine !== undefined);
  return machine;
}

describe("ready clones", () => {
  test("the second sandbox of a template is started from one: nothing is restored, and its name is its own", async () => {
    const machine = await oneReadyClone();
    bench.script.fail("restore", { times: 100 });
    const { id, state } = await bench.create();
    assert.equal(state, "running");
    assert.equal(machine, `${id}-0001`);
    assert.equal(bench.agents.told.at(-1)?.sandboxId, id);
    const [record] = await bench.records();
    assert.equal(record?.machineId, machine);
    assert.equal(bench.slots.heldIndexes().includes(record?.slotIndex ?? -1), true);
    assert.notEqual(bench.orchestrator.routes.get(id)?.address, undefined);
    assert.deepEqual([ready().hotStarts, ready().coldStarts], [1, 1]);
  });

  test("a sandbox started from one ends as any other, and nothing is left", async () => {
    await oneReadyClone();
    const { id } = await bench.create();
    bench.memory.budgetBytes = 0;
    await bench.orchestrator.kill(id);
    await until("the end of all clones", () => bench.machines().length === 0);
    assert.deepEqual(await bench.held(), {});
  });

  test("nobody sees one, and a node that stops leaves none", async () => {
    await oneReadyClone();
    assert.deepEqual(bench.orchestrator.list(), []);
    assert.equal(bench.orchestrator.stats().running, 0);
    assert.deepEqual(await bench.records(), []);
    await bench.orchestrator.close();
    assert.deepEqual(await bench.held(), {});
  });

  test("one whose memory cannot be read leaves nothing", async () => {
    const { id } = await bench.create();
    const start = bench.context.driver.restore;
    const unread: string[] = [];
    bench.context.driver.restore = async (spec, dir) => {
      const machine = await start.call(bench.context.driver, spec, dir);
      unread.push(machine.id);
      return Object.assign(machine, {
        stats: async () => {
          throw new Error("as the test wants");
        },
      });
    };
    await until("the attempt", () => unread.length === 1);
    await until("its end", () => bench.slots.heldIndexes().length === 1);
    assert.deepEqual(bench.machines(), [`${id}-0001`]);
    await until("the end of its lease", () => bench.leases.size === 1);
  });

  test("a sandbox is never started from one that ran under other rules than its own", async () => {
    const open = await oneReadyClone();
    const closed = { network: { internet: false } };
    const first = await bench.create(closed);
    assert.notEqual(`${first.id}-0001`, open);
    await readyClones(2);
    const second = await bench.create(closed);
    assert.deepEqual([ready().hotStarts, ready().coldStarts], [1, 2]);
    for (const record of await bench.records())
      assert.deepEqual(bench.slots.policies[record.slotIndex ?? -1], closed.network, record.machineId);
    assert.equal(bench.stateOf(second.id), "running");
    await bench.orchestrator.deleteSnapshot(SNAPSHOT.id);
    assert.deepEqual(bench.machines().sort(), [`${first.id}-0001`, `${second.id}-0001`].sort());
  });

  test("who asks for other resources gets none, and makes nobody wait for more", async () => {
    const machine = await oneReadyClone();
    const { id } = await bench.create({ resources: { ...SNAPSHOT.resources, vcpus: 1 } });
    assert.notEqual(machine, `${id}-0001`);
    assert.equal(ready().clones, 1);
  });

  test("a burst larger than the pool is restored, and raises it up to a most", async () => {
    await oneReadyClone();
    const all = await Promise.all(Array.from({ length: 8 }, () => bench.create()));
    assert.equal(new Set(all.map(({ id }) => id)).size, 8);
    await readyClones(4);
    assert.equal(ready().hotStarts, 1);
    await Promise.all(Array.from({ length: 4 }, () => bench.create()));
    assert.equal(ready().hotStarts, 5);
  });

  for (const [what, arrange] of [
    ["does not wake", () => bench.host.failNext("resume", new Error("as the test wants"))],
    ["does not take its identity", () => bench.script.fail("init")],
  ] as const) {
    test(`one that ${what} is ended, and its sandbox is restored without anybody noticing`, async () => {
      const machine = await oneReadyClone();
      arrange();
      const { id, state } = await bench.create();
      assert.equal(state, "running");
      assert.notEqual(machine, `${id}-0001`);
      await until("its end", () => !bench.machines().includes(machine));
      assert.equal(bench.leases.has(`sandbox:${machine.slice(0, -5)}`), false);
      assert.deepEqual([ready().hotStarts, ready().coldStarts], [0, 2]);
    });
  }

  test("one that dies is replaced, but not at once: the next may die as soon", async () => {
    const machine = await oneReadyClone();
    const endedAtMs = performance.now();
    await bench.host.end(machine, "crashed");
    await until("another", () => bench.machines().length === 1 && ready().clones === 1);
    assert.notDeepEqual(bench.machines(), [machine]);
    assert.ok(performance.now() - endedAtMs >= 1_000);
  });

  test("where one was of no use, the next is not made at once", async () => {
    await oneReadyClone();
    bench.script.fail("init");
    const beganAtMs = performance.now();
    await bench.create();
    await readyClones(1);
    assert.ok(performance.now() - beganAtMs >= 1_000);
  });

  test("one that cannot be made keeps nobody from starting", async () => {
    await bench.create();
    bench.script.fail("restore");
    await until("the failure, and the next attempt", () => ready().clones === 1);
    assert.equal(bench.machines().length, 2);
  });

  test("a snapshot is removed only when its clones have gone", async () => {
    await oneReadyClone();
    await bench.orchestrator.deleteSnapshot(SNAPSHOT.id);
    assert.deepEqual(await bench.held(), {});
  });

  test("whose record cannot be written fails, and leaves nothing of it", async () => {
    const machine = await oneReadyClone();
    bench.script.fail("journal");
    await assert.rejects(bench.create(), isKind("exhausted"));
    assert.equal(bench.machines().includes(machine), false);
    assert.deepEqual(await bench.records(), []);
  });

  test("the last slot is a request's: a clone goes for it", async () => {
    await oneReadyClone();
    bench.slots.total = 1;
    const { id } = await bench.create({ resources: { ...SNAPSHOT.resources, vcpus: 1 } });
    assert.equal(bench.stateOf(id), "running");
    assert.deepEqual(bench.machines(), [`${id}-0001`]);
    await assert.rejects(bench.create(), isKind("exhausted"));
  });

  test("the last slot is a request's: also that of a clone that is being made", async () => {
    await bench.create();
    const made = Promise.withResolvers<void>();
    bench.pace = () => made.promise;
    await until("the clone's slot", () => bench.slots.heldIndexes().length === 2);
    bench.slots.total = 2;
    const created = bench.create({ resources: { ...SNAPSHOT.resources, vcpus: 1 } });
    made.resolve();
    assert.equal((await created).state, "running");
    assert.equal(bench.slots.heldIndexes().length, 2);
  });
});

describe("kept copies", () => {
  test("a paused sandbox is thawed: the machine that was, the next generation, and no checkpoint any more", async () => {
    const { id } = await bench.create();
    await bench.orchestrator.pause(id);
    assert.equal(ready().copies, 1);
    assert.equal(bench.orchestrator.routes.get(id)?.address, undefined);
    bench.script.fail("restore", { times: 100 });
    const { sandbox, resumed } = await bench.orchestrator.connect(id);
    assert.deepEqual([resumed, sandbox.generation, sandbox.state], [true, 2, "running"]);
    assert.equal(bench.machines().includes(`${id}-0001`), true);
    assert.equal(bench.orchestrator.routes.get(id)?.generation, 2);
    const [record] = await bench.records();
    assert.deepEqual([record?.machineId, record?.checkpointOf], [`${id}-0001`, undefined]);
    assert.deepEqual((await bench.held()).checkpoints, undefined);
    assert.deepEqual([ready().copies, ready().warmResumes], [0, 1]);
  });

  test("who resumes it while it is looked at waits, and gets it", async () => {
    const { id } = await bench.create();
    const machine = bench.host.running.get(`${id}-0001`);
    assert.ok(machine !== undefined);
    const { stats } = machine;
    const looked = Promise.withResolvers<void>();
    let isLookedAt = false;
    machine.stats = async () => {
      isLookedAt = true;
      await looked.promise;
      return await stats.call(machine);
    };
    const paused = bench.orchestrator.pause(id);
    await until("the look", () => isLookedAt);
    const connected = bench.orchestrator.connect(id);
    looked.resolve();
    await Promise.all([paused, connected]);
    assert.deepEqual([ready().copies, ready().warmResumes], [0, 1]);
    assert.equal(bench.machines().includes(`${id}-0002`), false);
  });

  test("again and again: each pause has a checkpoint of its own", async () => {
    const { id } = await bench.create();
    for (let generation = 1; generation <= 5; generation += 1) {
      await bench.orchestrator.pause(id);
      const [record] = await bench.records();
      assert.equal(record?.checkpointOf, `${id}-000${generation}`);
      assert.equal((await bench.orchestrator.connect(id)).sandbox.generation, generation + 1);
    }
    assert.equal(ready().warmResumes, 5);
  });

  for (const [what, arrange] of [
    ["does not thaw", () => bench.host.failNext("resume", new Error("as the test wants"))],
    ["does not answer", () => bench.script.fail("init")],
  ] as const) {
    test(`one that ${what} is ended, and only then the checkpoint restored`, async () => {
      const { id } = await bench.create();
      await readyClones(1);
      await bench.orchestrator.pause(id);
      arrange();
      const copy = bench.host.running.get(`${id}-0001`);
      assert.ok(copy !== undefined);
      const { stop } = copy;
      copy.stop = async () => {
        await sleep(50);
        await stop.call(copy);
      };
      let met: string[] | undefined;
      bench.pace = async () => {
        met = bench.machines().filter((machine) => machine.startsWith(id));
      };
      assert.equal((await bench.orchestrator.connect(id)).sandbox.generation, 2);
      assert.equal(bench.machines().includes(`${id}-0002`), true);
      assert.deepEqual(met, []);
      assert.equal(ready().coldResumes, 1);
    });
  }

  test("one that dies is given up, and the checkpoint restored", async () => {
    const { id } = await bench.create();
    await bench.orchestrator.pause(id);
    await bench.host.end(`${id}-0001`, "crashed");
    await until("its end", () => ready().copies === 0);
    assert.equal(bench.stateOf(id), "paused");
    assert.equal((await bench.orchestrator.connect(id)).sandbox.generation, 2);
  });

  test("without room for it the sandbox stays paused, without a machine and a slot", async () => {
    const { id } = await bench.create();
    await bench.orchestrator.pause(id);
    bench.memory.budgetBytes = 0;
    await until("its end", () => bench.slots.heldIndexes().length === 0);
    assert.deepEqual(bench.machines(), []);
    assert.equal(bench.stateOf(id), "paused");
    assert.equal((await bench.orchestrator.connect(id)).sandbox.state, "running");
    assert.equal(ready().coldResumes, 1);
  });

  test("when slots run out a copy goes for who starts", async () => {
    const { id } = await bench.create({ resources: { ...SNAPSHOT.resources, vcpus: 1 } });
    await bench.orchestrator.pause(id);
    bench.slots.total = 1;
    const other = await bench.create({ resources: { ...SNAPSHOT.resources, vcpus: 1 } });
    assert.deepEqual(bench.machines(), [`${other.id}-0001`]);
    assert.equal(bench.stateOf(id), "paused");
  });

  test("a thaw that cannot be recorded leaves the sandbox paused, and its checkpoint is there", async () => {
    const { id } = await bench.create();
    await bench.orchestrator.pause(id);
    bench.script.fail("journal", { times: 2 });
    await assert.rejects(bench.orchestrator.connect(id), isKind("exhausted"));
    assert.equal(bench.stateOf(id), "paused");
    assert.equal((await bench.orchestrator.connect(id)).sandbox.state, "running");
  });

  test("a kill takes the copy of a paused sandbox along", async () => {
    const { id } = await bench.create();
    await bench.orchestrator.pause(id);
    bench.memory.budgetBytes = 0;
    await bench.orchestrator.kill(id);
    await until("the end of all clones", () => bench.machines().length === 0);
    assert.deepEqual(await bench.held(), {});
  });

  test("a kill takes the copy along whatever an edge does; the slot waits for the edge", async () => {
    const { id } = await bench.create({ resources: { ...SNAPSHOT.resources, vcpus: 1 } });
    bench.context.routes.attach("one that hangs");
    await bench.orchestrator.pause(id);
    assert.equal(ready().copies, 1);
    await bench.orchestrator.kill(id);
    assert.deepEqual([bench.stateOf(id), bench.machines()], [undefined, []]);
    assert.equal(bench.slots.heldIndexes().length, 1);
    bench.context.routes.detach("one that hangs");
    await until("its slot", () => bench.slots.heldIndexes().length === 0);
    assert.deepEqual(await bench.held(), {});
  });

  test("the slot of one whose machine cannot be ended stays its own", async () => {
    const { id } = await bench.create({ resources: { ...SNAPSHOT.resources, vcpus: 1 } });
    await bench.orchestrator.pause(id);
    bench.host.failNext("stop", new Error("as the test wants"));
    bench.memory.budgetBytes = 0;
    await until("the attempt", () => ready().copies === 0);
    await bench.orchestrator.close();
    assert.equal(bench.slots.heldIndexes().length, 1);
  });

  test("a node that stops leaves none, and the next one resumes from checkpoints", async () => {
    const { id } = await bench.create();
    await bench.orchestrator.pause(id);
    await bench.orchestrator.close();
    assert.deepEqual(bench.machines(), []);
    await bench.start();
    assert.equal((await bench.orchestrator.connect(id)).sandbox.generation, 2);
  });
});
