import assert from "node:assert/strict";
import { rename, writeFile } from "node:fs/promises";
import { test } from "node:test";
import { Bench, isKind, until } from "./testing/bench.ts";

test("a sandbox is not stuck when there is no room to fork it: it runs, and can be forked later (RES-06)", async () => {
  await using bench = await Bench.open();
  const { id } = await bench.create();
  const { checkpoints } = bench.paths;
  // Where no folder can be made, for root neither.
  await rename(checkpoints, `${checkpoints}-away`);
  await writeFile(checkpoints, "");
  await assert.rejects(bench.orchestrator.fork(id, 1), isKind("unavailable"));
  assert.equal(bench.stateOf(id), "running");
  await rename(`${checkpoints}-away`, `${checkpoints}-back`);
  await rename(checkpoints, `${checkpoints}-file`);
  await rename(`${checkpoints}-back`, checkpoints);
  const [copy] = await bench.orchestrator.fork(id, 1);
  assert.ok(copy !== undefined && "sandbox" in copy);
});

test("nobody is told that a sandbox runs while a resume that cannot be recorded is undone", async () => {
  await using bench = await Bench.open();
  const { id } = await bench.create();
  await bench.orchestrator.pause(id);
  const { driver } = bench.context;
  const { restore } = driver;
  const stopped = Promise.withResolvers<void>();
  let isBeingUndone = false;
  driver.restore = async (spec, dir) => {
    const machine = await restore.call(driver, spec, dir);
    const { stop } = machine;
    machine.stop = async () => {
      isBeingUndone = true;
      await stopped.promise;
      await stop.call(machine);
    };
    return machine;
  };
  bench.script.fail("journal", { after: 1 });
  const failed = assert.rejects(bench.orchestrator.connect(id), isKind("exhausted"));
  await until("the undoing", () => isBeingUndone);
  driver.restore = restore;
  const connected = bench.orchestrator.connect(id);
  stopped.resolve();
  await failed;
  assert.deepEqual([(await connected).resumed, bench.stateOf(id)], [true, "running"]);
});
