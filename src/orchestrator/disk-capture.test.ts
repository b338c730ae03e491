import assert from "node:assert/strict";
import { readFile, writeFile } from "node:fs/promises";
import { afterEach, beforeEach, describe, test } from "node:test";
import { CheckpointError } from "#driver";
import { readCheckpoint } from "./checkpoints.ts";
import { Bench, isKind, type Step, until } from "./testing/bench.ts";

let bench: Bench;

beforeEach(async () => {
  bench = await Bench.open();
});
afterEach(() => bench[Symbol.asyncDispose]());

async function restart(): Promise<void> {
  await bench.orchestrator.close();
  await bench.start();
}

/** Without what it was created from. */
function startedLater(): string[] {
  return bench.started.slice(1);
}

describe("a pause that keeps the disk alone", () => {
  test("is followed by a boot, with an agent that knows no key yet, and leaves nothing of it", async () => {
    const { id } = await bench.create();
    await bench.orchestrator.pause(id, "disk");
    const [record] = await bench.records();
    assert.deepEqual([record?.sandbox.state, record?.capture], ["paused", "disk"]);
    const manifest = await readCheckpoint(bench.paths.checkpoint(record?.checkpointOf ?? ""));
    assert.equal(manifest?.capture, "disk");
    await bench.context.background.close();
    assert.deepEqual(bench.machines(), []);
    const { sandbox, resumed } = await bench.orchestrator.connect(id);
    assert.deepEqual([sandbox.generation, resumed], [2, true]);
    assert.deepEqual(startedLater(), [`boot ${id}-0001`]);
    assert.deepEqual(bench.agents.keys, ["captured", undefined]);
    const [running] = await bench.records();
    assert.deepEqual([running?.capture, running?.checkpointOf], [undefined, undefined]);
    await bench.orchestrator.pause(id);
    await bench.orchestrator.resume(id);
    assert.deepEqual(startedLater(), [`boot ${id}-0001`, `restore ${id}-0002`]);
    await bench.orchestrator.kill(id);
    assert.deepEqual(await bench.held(), {});
  });

  test("is not ended by traffic, other than one that keeps memory", async () => {
    const { id } = await bench.create({ onTimeout: "pause", autoResume: true });
    await bench.orchestrator.pause(id, "disk");
    assert.equal(bench.orchestrator.routes.get(id)?.autoResume, false);
    await bench.orchestrator.resumeForTraffic(id, 1_000);
    assert.equal(bench.stateOf(id), "paused");
    await bench.orchestrator.connect(id);
    assert.equal(bench.orchestrator.routes.get(id)?.autoResume, true);
    await bench.orchestrator.pause(id);
    await bench.orchestrator.resumeForTraffic(id, 60_000);
    assert.equal(bench.stateOf(id), "running");
    const { id: other } = await bench.create();
    await bench.orchestrator.pause(other);
    await bench.orchestrator.resumeForTraffic(other, 60_000);
    assert.equal(bench.stateOf(other), "paused");
  });

  test("is what the timeout takes where the spec says so", async () => {
    const { id } = await bench.create({ timeoutMs: 1, onTimeout: "pause", timeoutCapture: "disk" });
    await until("the pause", () => bench.stateOf(id) === "paused");
    await bench.orchestrator.connect(id, 60_000);
    assert.deepEqual(startedLater(), [`boot ${id}-0001`]);
  });

  test("is refused, with what to do, where the driver has none", async () => {
    bench.diskCapture = undefined;
    const { id } = await bench.create();
    await assert.rejects(bench.orchestrator.pause(id, "disk"), isKind("invalid"));
    assert.equal(bench.stateOf(id), "running");
    await assert.rejects(bench.create({ onTimeout: "pause", timeoutCapture: "disk" }), isKind("invalid"));
    await bench.orchestrator.pause(id);
    await assert.rejects(bench.orchestrator.connect(id, 1_000, { reboot: true }), isKind("invalid"));
    assert.equal(bench.stateOf(id), "paused");
  });

  const steps: readonly (readonly [string, () => void])[] = [
    ["the freezing", () => bench.script.fail("freeze")],
    ["the capture", () => bench.host.failNext("checkpoint", new CheckpointError("no space", true))],
    ["the sync", () => bench.script.fail("sync")],
    ["its last record", () => bench.script.fail("journal", { after: 1 })],
  ];
  for (const [what, arrange] of steps) {
    test(`and fails at ${what} leaves a running sandbox with a disk that goes on`, async () => {
      bench.diskCapture = "flushed";
      const { id } = await bench.create({ autoResume: true });
      arrange();
      await assert.rejects(bench.orchestrator.pause(id, "disk"), isKind("unavailable"));
      assert.equal(bench.stateOf(id), "running");
      assert.equal(bench.orchestrator.routes.get(id)?.autoResume, true);
      assert.equal(bench.agents.disk.at(-1), "thaw");
      assert.deepEqual((await bench.records())[0]?.capture, undefined);
      await bench.orchestrator.pause(id);
      await bench.orchestrator.resume(id);
      assert.deepEqual(startedLater(), [`restore ${id}-0001`]);
    });
  }

  test("has the guest write out its disk first where the driver needs that, and only there", async () => {
    const { id } = await bench.create();
    await bench.orchestrator.pause(id, "disk");
    await bench.orchestrator.connect(id);
    assert.deepEqual(bench.agents.disk, []);
    bench.diskCapture = "flushed";
    await bench.orchestrator.pause(id, "disk");
    assert.deepEqual(bench.agents.disk, ["freeze"]);
  });
});

describe("a reboot of what was paused with its memory", () => {
  test("takes the disk out of the memory, boots it, and leaves nothing of the way", async () => {
    const { id } = await bench.create();
    await bench.orchestrator.pause(id);
    const { sandbox } = await bench.orchestrator.connect(id, 60_000, { reboot: true });
    assert.deepEqual([sandbox.state, sandbox.generation], ["running", 3]);
    const [restored, booted] = startedLater();
    assert.equal(restored, `restore ${id}-0001`);
    assert.match(booted ?? "", /^boot reboot-/);
    await bench.context.background.close();
    assert.deepEqual(bench.machines(), [`${id}-0003`]);
    assert.equal(bench.slots.heldIndexes().length, 1);
    const { checkpoints } = await bench.held();
    assert.equal(checkpoints, undefined);
  });

  test("tells nobody on the way that it is a copy: that is the booted one's to hear", async () => {
    bench.diskCapture = "flushed";
    const { id } = await bench.create();
    await bench.orchestrator.pause(id);
    await bench.orchestrator.connect(id, 60_000, { reboot: true });
    assert.deepEqual(bench.agents.disk, ["freeze"]);
    assert.deepEqual(bench.agents.keys, ["captured", undefined]);
  });

  test("does not need an agent that answers", async () => {
    const { id } = await bench.create();
    await bench.orchestrator.pause(id);
    await bench.orchestrator.connect(id, 60_000, { reboot: true });
    assert.deepEqual(bench.agents.keys, ["captured", undefined]);
  });

  test("says that it stays paused when the agent does not write its disk out", async () => {
    bench.diskCapture = "flushed";
    const { id } = await bench.create();
    await bench.orchestrator.pause(id);
    bench.script.fail("freeze");
    await assert.rejects(bench.orchestrator.resume(id, undefined, { reboot: true }), {
      kind: "unavailable",
      message: `Sandbox "${id}" could not be rebooted and stays paused`,
    });
    assert.equal(bench.stateOf(id), "paused");
  });

  for (const step of ["restore", "init", "boot"] as const satisfies readonly Step[]) {
    test(`that fails at ${step} leaves it paused with its memory`, async () => {
      const { id } = await bench.create();
      await bench.orchestrator.pause(id);
      bench.script.fail(step);
      await assert.rejects(bench.orchestrator.resume(id, undefined, { reboot: true }));
      assert.equal(bench.stateOf(id), "paused");
      await bench.context.background.close();
      assert.deepEqual([bench.machines(), bench.slots.heldIndexes()], [[], []]);
      bench.started.length = 0;
      await bench.orchestrator.resume(id);
      assert.deepEqual(bench.started, [`restore ${id}-0001`]);
    });
  }
});

describe("a snapshot of the disk alone", () => {
  test("is booted by each who is created from it, while the source goes on", async () => {
    const boot = { startCmd: "true" };
    const source = await bench.create({}, { boot });
    const snapshot = await bench.orchestrator.snapshot(source.id, {}, "disk");
    assert.deepEqual([snapshot.capture, snapshot.boot], ["disk", boot]);
    assert.equal(bench.stateOf(source.id), "running");
    for (let at = 0; at < 2; at += 1) await bench.orchestrator.create(source.spec, snapshot);
    assert.deepEqual(startedLater(), Array(2).fill(`boot ${snapshot.id}`));
    assert.deepEqual(bench.agents.keys, ["captured", undefined, undefined]);
    const [child] = bench.orchestrator.list();
    assert.ok(child !== undefined && child.id !== source.id);
    await bench.orchestrator.pause(child.id);
    await bench.orchestrator.resume(child.id);
    assert.equal(startedLater().at(-1), `restore ${child.id}-0001`);
    assert.equal((await bench.orchestrator.snapshot(child.id, {})).capture, undefined);
  });

  test("has the source's disk written out and frozen only where the driver needs that, and thawed again", async () => {
    const { id } = await bench.create();
    await bench.orchestrator.snapshot(id, {}, "disk");
    assert.deepEqual(bench.agents.disk, []);
    bench.diskCapture = "flushed";
    await bench.orchestrator.snapshot(id, {}, "disk");
    assert.deepEqual(bench.agents.disk, ["freeze", "thaw"]);
  });

  const steps: readonly (readonly [string, () => void])[] = [
    ["the freezing", () => bench.script.fail("freeze")],
    ["the capture", () => bench.host.failNext("checkpoint", new CheckpointError("no space", true))],
    ["the sync", () => bench.script.fail("sync")],
  ];
  for (const [what, arrange] of steps) {
    test(`and fails at ${what} leaves nothing, and a source that goes on`, async () => {
      bench.diskCapture = "flushed";
      const { id } = await bench.create();
      const before = await bench.held();
      arrange();
      await assert.rejects(bench.orchestrator.snapshot(id, {}, "disk"), isKind("unavailable"));
      assert.equal(bench.stateOf(id), "running");
      assert.equal(bench.agents.disk.at(-1), "thaw");
      assert.deepEqual(await bench.held(), before);
      await bench.orchestrator.snapshot(id, {}, "disk");
    });
  }

  test("is refused, with what to do, where the driver has none", async () => {
    bench.diskCapture = undefined;
    const { id } = await bench.create();
    await assert.rejects(bench.orchestrator.snapshot(id, {}, "disk"), isKind("invalid"));
    assert.equal(bench.stateOf(id), "running");
  });
});

describe("after a crash", () => {
  test("one paused with its disk alone is booted from it", async () => {
    const { id } = await bench.create({ autoResume: true });
    await bench.orchestrator.pause(id, "disk");
    await restart();
    assert.equal(bench.orchestrator.routes.get(id)?.autoResume, false);
    await bench.orchestrator.connect(id);
    assert.deepEqual(startedLater(), [`boot ${id}-0001`]);
  });

  test("a pause whose machine had ended already is finished as what it was", async () => {
    const { id } = await bench.create();
    await bench.orchestrator.pause(id, "disk");
    const [record] = await bench.records();
    assert.ok(record !== undefined);
    const { checkpointOf: _, ...pausing } = record;
    await bench.context.journal.save({ ...pausing, sandbox: { ...record.sandbox, state: "pausing" } });
    await restart();
    assert.equal(bench.stateOf(id), "paused");
    await bench.orchestrator.connect(id);
    assert.deepEqual(startedLater(), [`boot ${id}-0001`]);
  });

  test("what a reboot was made from is removed", async () => {
    const { id } = await bench.create();
    await bench.orchestrator.pause(id);
    bench.script.fail("boot");
    await assert.rejects(bench.orchestrator.resume(id, undefined, { reboot: true }));
    const left = bench.paths.checkpoint(`reboot-${id}-abc`);
    await writeFile(left, "");
    await restart();
    await assert.rejects(readFile(left));
    assert.equal(bench.stateOf(id), "paused");
  });
});

test("an idle sandbox that stands still goes on for as long as its guest is needed", async () => {
  await bench[Symbol.asyncDispose]();
  bench = await Bench.open({ idleAfterMs: 60 });
  bench.diskCapture = "flushed";
  const { id } = await bench.create();
  await until("its rest", () => bench.stateOf(id) === "frozen");
  const machine = bench.host.running.get(`${id}-0001`);
  assert.ok(machine !== undefined);
  const before: string[][] = [];
  machine.resume = async () => void before.push([...bench.agents.disk]);
  await bench.orchestrator.pause(id, "disk");
  assert.deepEqual([before, bench.agents.disk], [[[]], ["freeze"]]);
});

test("copies and snapshots are of the memory, and can be rebooted with what the template starts", async () => {
  const boot = { startCmd: "true" };
  const { id } = await bench.create({}, { boot });
  assert.deepEqual((await bench.orchestrator.snapshot(id, {})).boot, boot);
  const [result] = await bench.orchestrator.fork(id, 1);
  assert.ok(result !== undefined && "sandbox" in result);
  assert.deepEqual(
    (await bench.records()).map((record) => record.boot),
    [boot, boot],
  );
});
