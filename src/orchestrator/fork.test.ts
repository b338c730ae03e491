import assert from "node:assert/strict";
import { afterEach, beforeEach, describe, test } from "node:test";
import { setImmediate as turn } from "node:timers/promises";
import { Bench, isKind } from "./testing/bench.ts";

/** As many launches as the bench admits at a time. */
const WIDTH = 8;

let bench: Bench;

beforeEach(async () => {
  bench = await Bench.open({ readyTimeoutMs: 10_000 });
});
afterEach(() => bench[Symbol.asyncDispose]());

describe("a fork of a hundred", { timeout: 60_000 }, () => {
  test("is captured once and launched a few at a time; whoever finds no room says so, the others live", async () => {
    const { id } = await bench.create({ env: { A: "1" }, metadata: { m: "1" }, secure: true });
    let [captures, launching, most] = [0, 0, 0];
    const { restore } = bench.context.driver;
    bench.context.driver.restore = async (...args) => {
      launching += 1;
      most = Math.max(most, launching);
      for (let turns = 0; turns < 5; turns += 1) await turn();
      return await restore.apply(bench.context.driver, args).finally(() => (launching -= 1));
    };
    const machine = bench.host.running.get(bench.machines()[0] ?? "");
    assert.ok(machine !== undefined);
    const { checkpoint } = machine;
    machine.checkpoint = async (...args) => {
      captures += 1;
      return await checkpoint.apply(machine, args);
    };
    bench.script.fail("slot", { after: 97, times: 3 });
    const results = await bench.orchestrator.fork(id, 100);
    assert.deepEqual([results.length, captures], [100, 1]);
    assert.ok(most <= WIDTH, `${most} at a time`);
    const born = results.flatMap((result) => ("sandbox" in result ? [result.sandbox] : []));
    assert.equal(born.length, 97);
    for (const result of results) if ("error" in result) isKind("exhausted")(result.error);
    const all = [...born, bench.orchestrator.get(id)];
    assert.equal(new Set(all.map((one) => one?.accessToken)).size, 98);
    assert.ok(born.every(({ forkedFrom, spec }) => forkedFrom === id && spec.env.A === "1" && spec.metadata.m === "1"));
    await Promise.all(bench.orchestrator.list().map((one) => bench.orchestrator.kill(one.id)));
    assert.deepEqual(await bench.held(), {});
  });
});
