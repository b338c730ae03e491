import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { mkdir } from "node:fs/promises";
import { afterEach, beforeEach, describe, test } from "node:test";
import { AenvError, type Sandbox } from "#domain";
import type { SandboxRecord } from "./record.ts";
import { Bench, isKind, leaveCheckpoint, until } from "./testing/bench.ts";

let bench: Bench;

beforeEach(async () => {
  bench = await Bench.open();
});
afterEach(() => bench[Symbol.asyncDispose]());

describe("another server on what is there", () => {
  /** Stops the server, rewrites the only sandbox's record as a crash would have left it, and starts another. */
  async function restartWith(change: (record: SandboxRecord) => SandboxRecord): Promise<SandboxRecord> {
    await bench.orchestrator.close();
    const [record] = await bench.records();
    assert.ok(record !== undefined);
    const changed = change(record);
    await bench.context.journal.save(changed);
    await bench.start();
    return changed;
  }

  function inState(state: Sandbox["state"]): (record: SandboxRecord) => SandboxRecord {
    return (record) => ({ ...record, sandbox: { ...record.sandbox, state } });
  }

  for (const state of ["running", "pausing"] as const) {
    test(`a sandbox that was ${state} goes on in its machine`, async () => {
      const { id } = await bench.create();
      const before = bench.machines();
      await restartWith(inState(state));
      assert.equal(bench.stateOf(id), "running");
      assert.deepEqual(bench.machines(), before);
      assert.notEqual(bench.orchestrator.routes.get(id)?.address, undefined);
      await bench.orchestrator.pause(id);
      assert.equal((await bench.orchestrator.connect(id)).sandbox.generation, 2);
    });

    test(`a sandbox that was ${state} and has lost its machine is gone`, async () => {
      await bench.create();
      await bench.orchestrator.close();
      const [machine] = bench.machines();
      bench.host.running.delete(machine ?? "");
      await restartWith(inState(state));
      assert.deepEqual(await bench.held(), {});
    });
  }

  test("a sandbox whose machine ends while it is taken up is gone, and one that was just resumed is paused", async () => {
    const [{ id }, other] = [await bench.create(), await bench.create()];
    await bench.orchestrator.pause(other.id);
    await bench.orchestrator.connect(other.id);
    await bench.orchestrator.close();
    for (const record of await bench.records()) {
      const { machineId } = record;
      const machine = bench.host.running.get(machineId);
      assert.ok(machine !== undefined);
      machine.resume = async () => {
        await bench.host.end(machineId, "crashed");
        throw new Error("it does not answer");
      };
      if (record.sandbox.id === id) continue;
      // Its checkpoint goes only after it is recorded as running.
      await leaveCheckpoint(bench, machineId);
      await bench.context.journal.save({ ...record, checkpointOf: machineId });
    }
    await bench.start();
    assert.equal(bench.stateOf(id), undefined);
    assert.equal(bench.stateOf(other.id), "paused");
    assert.deepEqual(bench.machines(), []);
    await bench.orchestrator.kill(other.id);
    assert.deepEqual(await bench.held(), {});
  });

  for (const state of ["freezing", "frozen", "thawing"] as const) {
    test(`a sandbox that was ${state} goes on, awake`, async () => {
      const { id } = await bench.create();
      await restartWith(inState(state));
      assert.equal(bench.stateOf(id), "running");
      assert.equal(bench.orchestrator.routes.get(id)?.restAfterMs, undefined);
    });
  }

  test("the kept copy of a paused sandbox is none any more: it goes, and the checkpoint is restored", async () => {
    const { id } = await bench.create();
    const [machine = ""] = bench.machines();
    await leaveCheckpoint(bench, machine);
    await restartWith(({ slotIndex: _, ...record }) => ({
      ...record,
      sandbox: { ...record.sandbox, state: "paused" },
      checkpointOf: machine,
    }));
    assert.deepEqual(bench.machines(), []);
    assert.equal(bench.stateOf(id), "paused");
    assert.equal((await bench.orchestrator.connect(id)).sandbox.generation, 2);
  });

  for (const state of ["creating", "killing"] as const) {
    test(`a sandbox that was ${state} is gone, machine and all`, async () => {
      await bench.create();
      await restartWith(inState(state));
      assert.deepEqual(await bench.held(), {});
      assert.deepEqual(bench.machines(), []);
    });
  }

  test("a pause whose state was whole when the machine ended is finished", async () => {
    const { id } = await bench.create();
    const machine = bench.machines()[0] ?? "";
    await leaveCheckpoint(bench, machine);
    bench.host.running.delete(machine);
    await restartWith(inState("pausing"));
    assert.equal(bench.stateOf(id), "paused");
    assert.equal((await bench.orchestrator.connect(id)).resumed, true);
  });

  test("a paused sandbox stays so; the machine its pause had not ended yet is ended", async () => {
    const { id } = await bench.create();
    const machine = bench.machines()[0] ?? "";
    await leaveCheckpoint(bench, machine);
    await restartWith((record) => ({ ...inState("paused")(record), checkpointOf: machine }));
    assert.equal(bench.stateOf(id), "paused");
    assert.deepEqual(bench.machines(), []);
    assert.equal((await bench.orchestrator.connect(id)).sandbox.generation, 2);
  });

  test("a sandbox that was resuming is paused as before", async () => {
    const { id } = await bench.create();
    await bench.orchestrator.pause(id);
    await bench.context.background.close();
    bench.host.leave("i000-half-started");
    await restartWith((record) => {
      const { sandbox } = inState("resuming")(record);
      return { ...record, sandbox: { ...sandbox, generation: 2 }, machineId: "i000-half-started" };
    });
    assert.equal(bench.stateOf(id), "paused");
    assert.deepEqual([...bench.host.remains], []);
    assert.equal((await bench.orchestrator.connect(id)).sandbox.generation, 3);
  });

  test("a resume of which only the end was not recorded is one; its checkpoint goes", async () => {
    const { id } = await bench.create();
    const machine = bench.machines()[0] ?? "";
    await leaveCheckpoint(bench, machine);
    await restartWith((record) => ({ ...record, checkpointOf: machine }));
    assert.equal(bench.stateOf(id), "running");
    assert.equal(existsSync(bench.paths.checkpoint(machine)), false);
  });

  test("a resumed one whose machine has died at once is paused, as its checkpoint is still there", async () => {
    const { id } = await bench.create();
    const machine = bench.machines()[0] ?? "";
    await leaveCheckpoint(bench, machine);
    bench.host.running.delete(machine);
    await restartWith((record) => ({ ...record, checkpointOf: machine }));
    assert.equal(bench.stateOf(id), "paused");
  });

  test("a paused one of which nothing was saved is gone", async () => {
    await bench.create();
    await restartWith((record) => ({ ...inState("paused")(record), checkpointOf: "i000-never" }));
    assert.deepEqual(await bench.held(), {});
  });

  test("what no record knows is removed: machines, checkpoints, leases", async () => {
    const { id } = await bench.create();
    await bench.orchestrator.close();
    bench.host.leave("i000-unknown");
    bench.leases.set("sandbox:i000", "x");
    await mkdir(`${bench.paths.checkpoints}/fork-of-a-dead-server`);
    await bench.start();
    const held = await bench.held();
    assert.deepEqual([held.checkpoints, held.leases], [undefined, [`sandbox:${id}`]]);
    assert.deepEqual([...bench.host.remains], bench.machines());
  });

  test("one sandbox that cannot be taken up keeps nobody from the others, and is not harmed", async () => {
    const { id } = await bench.create();
    const other = await bench.create();
    await bench.orchestrator.close();
    bench.host.failNext("adopt", new Error("as the test wants"));
    await bench.start();
    assert.equal(bench.orchestrator.list().length, 1);
    await bench.orchestrator.close();
    await bench.start();
    assert.deepEqual(
      bench.orchestrator
        .list()
        .map((sandbox) => sandbox.id)
        .sort(),
      [id, other.id].sort(),
    );
  });

  test("a node of which a part is away does not start, and harms nothing", async () => {
    const { id } = await bench.create();
    await bench.orchestrator.close();
    bench.host.failNext("adopt", new AenvError("unavailable", "not now"));
    await assert.rejects(bench.start(), isKind("unavailable"));
    await bench.start();
    assert.equal(bench.stateOf(id), "running");
  });

  test("a slot that a paused sandbox had is not taken from who has it now", async () => {
    const first = await bench.create();
    await bench.orchestrator.pause(first.id);
    await bench.context.background.close();
    const second = await bench.create();
    const records = await bench.records();
    assert.deepEqual(
      records.map((record) => record.slotIndex).filter((index) => index !== undefined),
      [0],
    );
    await bench.orchestrator.close();
    await bench.start();
    await bench.context.background.close();
    assert.equal(bench.stateOf(second.id), "running");
    assert.deepEqual(bench.slots.heldIndexes(), [0]);
  });

  test("what ran out meanwhile is ended at once (OPS-02)", async () => {
    await bench.create();
    await restartWith((record) => ({ ...record, sandbox: { ...record.sandbox, endAtMs: Date.now() - 1 } }));
    await until("the end", () => bench.context.entries.all().length === 0);
  });
});

test("an edge that was here before takes in the new table before any address is used again", async () => {
  bench.context.routes.attach("1:1");
  const created = bench.create();
  await new Promise((resolve) => setTimeout(resolve, 50));
  assert.deepEqual(bench.slots.heldIndexes(), []);
  bench.context.routes.acknowledge("1:1", 0);
  assert.equal((await created).state, "running");
});
