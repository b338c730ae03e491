import assert from "node:assert/strict";
import { describe, test } from "node:test";
import type { MachineExit } from "#driver";
import { hasEnded, onEnd } from "./machine-end.ts";
import { Bench } from "./testing/bench.ts";

const EXIT: MachineExit = { atMs: 1, reason: "crashed" };

function machine() {
  const exit = Promise.withResolvers<MachineExit>();
  return { exited: exit.promise, end: () => exit.resolve(EXIT) };
}

describe("the end of a machine", () => {
  test("is told to all who listen, once, also to who comes late, and to nobody who has gone", async () => {
    const told: string[] = [];
    const { exited, end } = machine();
    const ending = { exited };
    const listen = (name: string) => onEnd(ending, (exit) => told.push(`${name} ${exit.reason}`));
    listen("first");
    listen("gone")[Symbol.dispose]();
    assert.equal(hasEnded(ending), false);
    end();
    await exited;
    assert.equal(hasEnded(ending), true);
    listen("late");
    listen("gone late")[Symbol.dispose]();
    await new Promise((resolve) => setImmediate(resolve));
    assert.deepEqual(told, ["first crashed", "late crashed"]);
  });

  test("is waited for once, however often a sandbox is paused and thawed in the same machine", async () => {
    await using bench = await Bench.open({ memoryBudgetMib: 1024 });
    const { id } = await bench.create();
    const [machineId = ""] = bench.machines();
    const running = bench.host.running.get(machineId);
    assert.ok(running !== undefined);
    let waits = 0;
    const { exited } = running;
    const then: typeof exited.then = (...handlers) => {
      waits += 1;
      return exited.then(...handlers);
    };
    Object.defineProperty(running, "exited", { value: { then } });
    const cycle = async () => {
      await bench.orchestrator.pause(id);
      await bench.orchestrator.resume(id);
    };
    await cycle();
    const before = waits;
    for (let at = 0; at < 20; at += 1) await cycle();
    assert.equal(bench.orchestrator.stats().ready.warmResumes, 21);
    assert.equal(waits, before);
    await bench.host.end(machineId, "crashed");
    while (bench.stateOf(id) !== undefined) await new Promise((resolve) => setTimeout(resolve, 5));
  });

  const starts: readonly (readonly [string, (bench: Bench) => Promise<unknown>, number])[] = [
    ["a create", (bench) => bench.create(), 1],
    ["a template's start", (bench) => bench.makeSnapshot(), 1],
    ["a template's capture", (bench) => bench.makeSnapshot(), 2],
  ];
  for (const [what, start, inits] of starts) {
    test(`is told at once by ${what} whose agent has not taken its identity`, async () => {
      await using bench = await Bench.open({ readyTimeoutMs: 60_000 });
      const asked = Promise.withResolvers<void>();
      let left = inits;
      bench.agents.pace = async () => {
        left -= 1;
        if (left > 0) return;
        asked.resolve();
        await new Promise(() => {});
      };
      const refused = assert.rejects(start(bench), { kind: "unavailable", message: /ended while starting: crashed/ });
      await asked.promise;
      const [machineId = ""] = bench.machines();
      await bench.host.end(machineId, "crashed");
      await refused;
      assert.deepEqual(await bench.held(), {});
    });
  }
});
