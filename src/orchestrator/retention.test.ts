import assert from "node:assert/strict";
import { afterEach, beforeEach, describe, test } from "node:test";
import { Bench, isKind, until } from "./testing/bench.ts";

/** Over at the reaper's next look. */
const SHORT_MS = 1;
const LONG_MS = 3_600_000;

let bench: Bench;

beforeEach(async () => {
  bench = await Bench.open();
});
afterEach(() => bench[Symbol.asyncDispose]());

/** Another server on what is there, that keeps paused sandboxes so long. */
async function restartWith(pausedRetentionMs: number | undefined): Promise<void> {
  await bench.orchestrator.close();
  bench.pausedRetentionMs = pausedRetentionMs;
  await bench.start();
}

describe("a paused sandbox", () => {
  test("that has been kept long enough goes with all that is its own, also at the start of a server", async () => {
    const { id } = await bench.create();
    await bench.orchestrator.pause(id);
    await restartWith(SHORT_MS);
    await until("its end", () => bench.context.entries.all().length === 0);
    await assert.rejects(bench.orchestrator.connect(id), isKind("not-found"));
    assert.deepEqual(await bench.held(), {});
  });

  test("leaves its snapshots and its forks", async () => {
    const source = await bench.create();
    const snapshot = await bench.orchestrator.snapshot(source.id, {});
    const [fork] = await bench.orchestrator.fork(source.id, 1);
    assert.ok(fork !== undefined && "sandbox" in fork);
    await bench.orchestrator.pause(source.id);
    await restartWith(SHORT_MS);
    await until("its end", () => bench.orchestrator.get(source.id) === undefined);
    assert.equal(bench.stateOf(fork.sandbox.id), "running");
    const child = await bench.orchestrator.create(source.spec, snapshot);
    assert.equal(child.state, "running");
  });

  test("says when it will be removed, counted from its pause and by the setting of now", async () => {
    const { id } = await bench.create();
    assert.equal(bench.orchestrator.get(id)?.removeAtMs, undefined);
    await bench.orchestrator.pause(id);
    assert.equal(bench.orchestrator.get(id)?.removeAtMs, undefined);
    await restartWith(LONG_MS);
    const paused = bench.orchestrator.get(id);
    assert.equal(paused?.removeAtMs, (paused?.endAtMs ?? 0) + LONG_MS);
    assert.equal(bench.orchestrator.list()[0]?.removeAtMs, paused?.removeAtMs);
    const { sandbox } = await bench.orchestrator.connect(id);
    assert.equal(sandbox.removeAtMs, undefined);
    assert.equal(bench.orchestrator.get(id)?.removeAtMs, undefined);
    await bench.orchestrator.pause(id);
    await restartWith(undefined);
    assert.equal(bench.orchestrator.get(id)?.removeAtMs, undefined);
  });
});
