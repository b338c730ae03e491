import assert from "node:assert/strict";
import { writeFile } from "node:fs/promises";
import { afterEach, beforeEach, describe, test } from "node:test";
import { errorKind } from "#domain";
import { CheckpointError } from "#driver";
import { Bench, isKind, type Step, until } from "./testing/bench.ts";

let bench: Bench;

beforeEach(async () => {
  bench = await Bench.open();
});
afterEach(() => bench[Symbol.asyncDispose]());

describe("a create that fails", () => {
  const steps: readonly Step[] = ["journal", "slot", "mount", "restore", "init"];
  for (const step of steps) {
    test(`at ${step} leaves nothing, and the next one works`, async () => {
      bench.script.fail(step);
      await assert.rejects(bench.create());
      assert.deepEqual(await bench.held(), {});
      assert.equal(bench.stateOf((await bench.create()).id), "running");
    });
  }

  test("because the agent never answers leaves nothing", async () => {
    bench.script.fail("health", { times: 1000 });
    await assert.rejects(bench.create(), isKind("deadline"));
    assert.deepEqual(await bench.held(), {});
  });

  test("at its last record leaves nothing", async () => {
    bench.script.fail("journal", { after: 1 });
    await assert.rejects(bench.create(), isKind("exhausted"));
    assert.deepEqual(await bench.held(), {});
  });

  test("and cannot be undone at once is undone a little later", async () => {
    bench.script.fail("restore");
    bench.script.fail("release");
    await assert.rejects(bench.create());
    assert.deepEqual(bench.orchestrator.list(), []);
    await until("the undoing", () => bench.context.entries.all().length === 0);
    assert.deepEqual(await bench.held(), {});
  });
});

describe("a pause that fails", () => {
  const steps: readonly (readonly [string, () => void])[] = [
    ["its first record", () => bench.script.fail("journal")],
    ["the capture", () => bench.host.failNext("checkpoint", new CheckpointError("no space", true))],
    ["the sync", () => bench.script.fail("sync")],
    ["its last record", () => bench.script.fail("journal", { after: 1 })],
    ["a full disk, where nothing can be recorded any more", () => bench.script.fail("journal", { times: 2 })],
  ];
  for (const [what, arrange] of steps) {
    test(`for ${what} leaves the sandbox running, reachable, and pausable`, async () => {
      const { id } = await bench.create();
      const [machine] = bench.machines();
      arrange();
      await assert.rejects(bench.orchestrator.pause(id), isKind("unavailable"));
      assert.equal(bench.stateOf(id), "running");
      assert.notEqual(bench.orchestrator.routes.get(id)?.address, undefined);
      assert.deepEqual(bench.machines(), [machine]);
      assert.deepEqual((await bench.held()).checkpoints, undefined);
      await bench.orchestrator.pause(id);
      assert.equal(bench.stateOf(id), "paused");
      assert.equal((await bench.orchestrator.connect(id)).sandbox.generation, 2);
    });
  }

  test("with the machine takes the sandbox along", async () => {
    const { id } = await bench.create();
    bench.host.failNext("checkpoint", new CheckpointError("the sandbox died", false));
    await assert.rejects(bench.orchestrator.pause(id), isKind("not-found"));
    assert.deepEqual(await bench.held(), {});
  });

  test("at the timeout is tried again, and not at once", async () => {
    bench.script.fail("sync");
    const { id } = await bench.create({ timeoutMs: 1, onTimeout: "pause" });
    await until("the failed pause", () => (bench.context.entries.get(id)?.retryExpiryAtMs ?? 0) > Date.now());
    assert.equal(bench.stateOf(id), "running");
  });
});

describe("a resume that fails", () => {
  for (const step of ["journal", "slot", "mount", "restore", "init"] as const) {
    test(`at ${step} leaves the sandbox paused, and the next one works`, async () => {
      const { id } = await bench.create();
      await bench.orchestrator.pause(id);
      bench.script.fail(step);
      await assert.rejects(bench.orchestrator.connect(id));
      assert.equal(bench.stateOf(id), "paused");
      await bench.context.background.close();
      assert.deepEqual(bench.machines(), []);
      assert.deepEqual(bench.slots.heldIndexes(), []);
      const { sandbox } = await bench.orchestrator.connect(id);
      assert.deepEqual([sandbox.state, sandbox.generation], ["running", 3]);
    });
  }

  test("only to be recorded does not fail", async () => {
    const { id } = await bench.create();
    await bench.orchestrator.pause(id);
    bench.script.fail("journal", { after: 2 });
    assert.equal((await bench.orchestrator.resume(id)).state, "running");
  });

  test("for a damaged state says so and keeps it", async () => {
    const { id } = await bench.create();
    await bench.orchestrator.pause(id);
    const [record] = await bench.records();
    await writeFile(`${bench.paths.checkpoint(record?.checkpointOf ?? "")}/state/fake.json`, "");
    await assert.rejects(bench.orchestrator.connect(id), /damaged/);
    assert.equal(bench.stateOf(id), "paused");
  });
});

describe("many clients at once", () => {
  test("that connect while it is being paused make one resume (LIFE-05)", async () => {
    const { id } = await bench.create();
    const pausing = bench.orchestrator.pause(id);
    const connected = Promise.all(Array.from({ length: 10 }, () => bench.orchestrator.connect(id)));
    await pausing;
    const answers = await connected;
    assert.deepEqual([...new Set(answers.map(({ sandbox }) => sandbox.generation))], [2]);
    assert.equal(answers.filter(({ resumed }) => resumed).length, 1);
    await bench.context.background.close();
    assert.equal(bench.machines().length, 1);
  });

  test("that pause while it is being resumed make one pause, and whoever comes late hears of it", async () => {
    const { id } = await bench.create();
    await bench.orchestrator.pause(id);
    const resuming = bench.orchestrator.resume(id);
    const pauses = await Promise.allSettled(Array.from({ length: 5 }, () => bench.orchestrator.pause(id)));
    await resuming;
    assert.deepEqual([...new Set(pauses.map((each) => each.status))], ["fulfilled"]);
    assert.equal(bench.stateOf(id), "paused");
    await assert.rejects(bench.orchestrator.pause(id), isKind("conflict"));
  });

  test("that resume: one does, the others hear that it runs", async () => {
    const { id } = await bench.create();
    await bench.orchestrator.pause(id);
    const answers = await Promise.allSettled(Array.from({ length: 5 }, () => bench.orchestrator.resume(id)));
    assert.deepEqual(answers.map((each) => each.status).sort(), ["fulfilled", ...Array(4).fill("rejected")]);
    await bench.context.background.close();
    assert.equal(bench.machines().length, 1);
  });

  test("that fork and pause and extend are served one after another", async () => {
    const { id } = await bench.create();
    const forked = bench.orchestrator.fork(id, 2);
    const extended = bench.orchestrator.setTimeout(id, 500_000);
    const paused = bench.orchestrator.pause(id);
    const results = await forked;
    await extended;
    await paused;
    assert.equal(results.filter((result) => "sandbox" in result).length, 2);
    assert.equal(bench.stateOf(id), "paused");
    await bench.context.background.close();
    assert.equal(bench.machines().length, 2);
  });
});

describe("a kill", () => {
  test("during a resume wins: the resume hears that the sandbox is gone (LIFE-02)", async () => {
    const { id } = await bench.create();
    await bench.orchestrator.pause(id);
    const resumed = assert.rejects(bench.orchestrator.connect(id), isKind("not-found"));
    await bench.orchestrator.kill(id);
    await resumed;
    assert.deepEqual(await bench.held(), {});
    await assert.rejects(bench.orchestrator.connect(id), isKind("not-found"));
  });

  test("during a pause wins, also over who waits to connect", async () => {
    const { id } = await bench.create();
    const paused = bench.orchestrator.pause(id);
    const connected = assert.rejects(bench.orchestrator.connect(id), isKind("not-found"));
    const killed = bench.orchestrator.kill(id);
    await Promise.all([paused, connected, killed]);
    assert.deepEqual(await bench.held(), {});
  });

  test("of one that has just been paused waits for its machine's end", async () => {
    const { id } = await bench.create();
    const machine = bench.host.running.get(bench.machines()[0] ?? "");
    assert.ok(machine !== undefined);
    const { stop } = machine;
    machine.stop = async () => {
      await new Promise((resolve) => setTimeout(resolve, 50));
      await stop.call(machine);
    };
    await bench.orchestrator.pause(id);
    assert.equal(bench.host.remains.size, 1);
    await bench.orchestrator.kill(id);
    assert.equal(bench.host.remains.size, 0);
  });

  test("asked for twice is one", async () => {
    const { id } = await bench.create();
    await Promise.all([bench.orchestrator.kill(id), bench.orchestrator.kill(id)]);
    await assert.rejects(bench.orchestrator.kill(id), isKind("not-found"));
  });

  test("does not need a disk with space", async () => {
    const { id } = await bench.create();
    await bench.orchestrator.pause(id);
    bench.script.fail("journal");
    await bench.orchestrator.kill(id);
    assert.deepEqual(await bench.held(), {});
  });

  test("of what runs no more is over for everybody, while what is left of it is removed, and tried again", async () => {
    const { id } = await bench.create();
    bench.script.fail("release");
    await bench.orchestrator.kill(id);
    assert.equal(bench.stateOf(id), undefined);
    await assert.rejects(bench.orchestrator.kill(id), { kind: "not-found" });
    assert.equal(bench.orchestrator.stats().running, 0);
    await until("the end", () => bench.context.entries.all().length === 0);
    assert.deepEqual(await bench.held(), {});
  });

  test("is answered when no edge sends there any more, or one has said nothing for long", async () => {
    const { id } = await bench.create();
    const { routes } = bench.context;
    routes.attach("edge");
    routes.acknowledge("edge", routes.revision);
    let answered = false;
    const killed = bench.orchestrator.kill(id).then(() => {
      answered = true;
    });
    await until("its machine to end", () => bench.machines().length === 0);
    assert.equal(answered, false);
    routes.acknowledge("edge", routes.revision);
    await killed;
    const other = await bench.create();
    await bench.orchestrator.kill(other.id);
    routes.detach("edge");
  });

  test("is answered while the kernel takes its machine apart, whose slot goes to who asks next", async () => {
    bench.slots.total = 1;
    const { id } = await bench.create();
    const machine = bench.context.entries.get(id)?.incarnation?.machine;
    assert.ok(machine !== undefined);
    const stop = machine.stop;
    const removed = Promise.withResolvers<void>();
    machine.stop = async () => {
      const stopped = stop.call(machine);
      await removed.promise;
      await stopped;
    };
    await bench.orchestrator.kill(id);
    assert.equal(bench.machines().length, 0);
    assert.equal(bench.slots.heldIndexes().length, 1);
    const next = bench.create();
    removed.resolve();
    assert.equal((await next).state, "running");
    bench.slots.total = 200;
  });

  test("takes children of a fork that are still being made, and only them", async () => {
    const { id } = await bench.create();
    const results = await bench.orchestrator.fork(id, 3);
    bench.script.fail("restore");
    const more = await bench.orchestrator.fork(id, 2);
    assert.equal(more.filter((result) => "error" in result).length, 1);
    assert.equal(bench.orchestrator.list().length, 1 + results.length + 1);
    for (const sandbox of bench.orchestrator.list()) await bench.orchestrator.kill(sandbox.id);
    assert.deepEqual(await bench.held(), {});
  });
});

describe("a machine that ends by itself", () => {
  test("takes its sandbox with it", async () => {
    const { id } = await bench.create();
    await bench.host.end(bench.machines()[0] ?? "", "crashed", "it fell");
    await until("the end", () => bench.context.entries.all().length === 0);
    assert.equal(bench.stateOf(id), undefined);
    assert.deepEqual(await bench.held(), {});
  });

  test("while somebody kills it ends once", async () => {
    const { id } = await bench.create();
    const ended = bench.host.end(bench.machines()[0] ?? "", "out-of-memory");
    await bench.orchestrator.kill(id);
    await ended;
    assert.deepEqual(await bench.held(), {});
  });

  test("after its capture takes nothing with it: the sandbox is paused", async () => {
    const { id } = await bench.create();
    const machine = bench.host.running.get(bench.machines()[0] ?? "");
    assert.ok(machine !== undefined);
    const { checkpoint } = machine;
    machine.checkpoint = async (...args) => {
      const report = await checkpoint.apply(machine, args);
      await bench.host.end(machine.id, "crashed");
      return report;
    };
    await bench.orchestrator.pause(id);
    assert.equal(bench.stateOf(id), "paused");
    assert.equal((await bench.orchestrator.connect(id)).resumed, true);
  });
});

describe("the timeout", () => {
  test("ends what is over, and no extension that was answered is overruled (LIFE-01)", async () => {
    const kept: string[] = [];
    let late = 0;
    const extend = async (id: string, atMs: number): Promise<void> => {
      await new Promise((resolve) => setTimeout(resolve, atMs - Date.now()));
      await bench.orchestrator.setTimeout(id, 60_000).then(
        () => kept.push(id),
        (error) => {
          assert.equal(errorKind(error), "not-found");
          late += 1;
        },
      );
    };
    // On a busy machine all of a round may be in time, or late.
    for (let round = 0; kept.length === 0 || late === 0; round += 1) {
      assert.ok(round < 50, `in ${round} rounds ${kept.length} were extended in time and ${late} were late`);
      const asked: Promise<void>[] = [];
      for (let at = 0; at < 24; at += 1) {
        const { id, endAtMs } = await bench.create({ timeoutMs: 200 });
        // From before its end to when it has been seen.
        asked.push(extend(id, endAtMs - 150 + at * 20));
      }
      await Promise.all(asked);
    }
    await until("the others' end", () => bench.context.entries.all().length === kept.length);
    const left = bench.orchestrator.list().map(({ id }) => id);
    assert.deepEqual(left.sort(), kept.sort());
  });

  test("refresh and connect never shorten, set-timeout may (LIFE-11)", async () => {
    const { id, endAtMs } = await bench.create({ timeoutMs: 60_000 });
    await bench.orchestrator.extendTimeout(id, 10_000);
    await bench.orchestrator.connect(id, 5_000);
    assert.equal(bench.orchestrator.get(id)?.endAtMs, endAtMs);
    await bench.orchestrator.setTimeout(id, 10_000);
    assert.ok((bench.orchestrator.get(id)?.endAtMs ?? 0) < endAtMs);
    await bench.orchestrator.extendTimeout(id, 70_000);
    assert.ok((bench.orchestrator.get(id)?.endAtMs ?? 0) > endAtMs);
  });

  test("does not run while paused, and starts anew with a resume (LIFE-10)", async () => {
    const { id } = await bench.create({ timeoutMs: 300 });
    await bench.orchestrator.pause(id);
    await new Promise((resolve) => setTimeout(resolve, 700));
    const { sandbox } = await bench.orchestrator.connect(id, 30_000);
    assert.ok(sandbox.endAtMs - Date.now() > 29_000);
  });
});
