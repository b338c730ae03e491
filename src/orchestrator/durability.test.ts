import assert from "node:assert/strict";
import { readdir } from "node:fs/promises";
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

test("what is captured to be durable says so; what a fork or a reboot captures for now does not", async () => {
  await using bench = await Bench.open();
  const { id } = await bench.create();
  const { orchestrator, durable } = bench;
  await orchestrator.fork(id, 1);
  assert.deepEqual(durable, []);
  const whole = await orchestrator.snapshot(id, {});
  const disk = await orchestrator.snapshot(id, {}, "disk");
  await orchestrator.pause(id);
  assert.deepEqual(durable.splice(0), [whole.id, disk.id, `${id}-0001`]);
  await orchestrator.connect(id, 60_000, { reboot: true });
  assert.deepEqual(durable, []);
});

test("a snapshot is whole on stable storage, with the agent that it was made with, before it is answered", async () => {
  await using bench = await Bench.open();
  const { store, paths, agentDigest } = bench.context;
  const order: unknown[] = [];
  store.sync = async (synced) => {
    const [dir = ""] = synced;
    order.push({ synced: synced.slice(1), holds: (await readdir(dir)).sort() });
  };
  const { id } = await bench.makeSnapshot();
  order.push("answered");
  assert.deepEqual(order, [{ synced: [paths.agent(agentDigest)], holds: ["manifest.json", "state"] }, "answered"]);
  assert.deepEqual((await readdir(paths.snapshot(id))).sort(), ["manifest.json", "state"]);
  // Whoever reaches the agent of a machine restored from it, before that is told who it is, finds it shut.
  assert.match(bench.agents.told.at(-1)?.accessToken ?? "", /^\w{30,}$/);
});

test("a paused sandbox that is killed is so on stable storage before anything of it is removed", async () => {
  await using bench = await Bench.open();
  const { id } = await bench.create();
  await bench.orchestrator.pause(id);
  const { journal, paths } = bench.context;
  const order: unknown[] = [];
  const save = journal.save.bind(journal);
  journal.save = async (record: SandboxRecord, options) => {
    await save(record, options);
    order.push({ state: record.sandbox.state, durable: options?.durable, saved: await readdir(paths.checkpoints) });
  };
  await bench.orchestrator.kill(id);
  assert.deepEqual(order, [{ state: "killing", durable: true, saved: [`${id}-0001`] }]);
});
