import assert from "node:assert/strict";
import { test } from "node:test";
import type { SandboxRecord } from "./record.ts";
import { Bench } from "./testing/bench.ts";

test("a pause is answered after its state is on stable storage, and its record after that", async () => {
  await using bench = await Bench.open();
  const { id } = await bench.create();
  const order: string[] = [];
  const { store, journal, paths } = bench.context;
  const { sync } = store;
  store.sync = async (synced) => {
    await sync(synced);
    order.push(`synced ${synced.join()}`);
  };
  const save = journal.save.bind(journal);
  journal.save = async (record: SandboxRecord, options) => {
    await save(record, options);
    order.push(`${record.sandbox.state}${options?.durable === true ? " durably" : ""}`);
  };
  await bench.orchestrator.pause(id);
  order.push("answered");
  assert.deepEqual(order, ["pausing", `synced ${paths.checkpoint(`${id}-0001`)}`, "paused durably", "answered"]);
});
