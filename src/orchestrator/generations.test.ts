import assert from "node:assert/strict";
import { test } from "node:test";
import { Bench } from "./testing/bench.ts";

test("each start of a state is told as another generation, and the source of a fork is told nothing (SNAP-01)", async () => {
  await using bench = await Bench.open();
  const { id } = await bench.create();
  await bench.orchestrator.pause(id);
  await bench.orchestrator.connect(id);
  const [fork] = await bench.orchestrator.fork(id, 1);
  assert.ok(fork !== undefined && "sandbox" in fork);
  const { told } = bench.agents;
  assert.deepEqual(
    told.map(({ sandboxId, generation }) => [sandboxId, generation]),
    [
      [id, 1],
      [id, 2],
      [fork.sandbox.id, 1],
    ],
  );
  assert.equal(new Set(told.map(({ generationId }) => generationId)).size, told.length);
});
