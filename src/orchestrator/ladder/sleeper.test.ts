import assert from "node:assert/strict";
import { afterEach, beforeEach, describe, test } from "node:test";
import type { RouteChange, SandboxId } from "#domain";
import { Bench, isKind, until } from "../testing/bench.ts";

const AFTER_MS = 60;

describe("an idle sandbox", () => {
  let bench: Bench;
  let pauses: number;
  let thaws: number;

  beforeEach(async () => {
    bench = await Bench.open({ idleAfterMs: AFTER_MS });
    pauses = 0;
    thaws = 0;
  });
  afterEach(() => bench[Symbol.asyncDispose]());

  async function create(change: Parameters<Bench["create"]>[0] = {}): Promise<SandboxId> {
    const { id } = await bench.create(change);
    const machine = bench.host.running.get(`${id}-0001`);
    assert.ok(machine !== undefined);
    const { pause, resume } = machine;
    machine.pause = async () => {
      pauses += 1;
      await pause.call(machine);
    };
    machine.resume = async () => {
      thaws += 1;
      await resume.call(machine);
    };
    return id;
  }

  async function frozen(change: Parameters<Bench["create"]>[0] = {}): Promise<SandboxId> {
    const id = await create(change);
    await until("the freeze", () => bench.stateOf(id) === "frozen");
    return id;
  }

  /** How often a sandbox has been asked to stand still from now on. */
  function countOffers(id: SandboxId): () => number {
    let count = 0;
    bench.orchestrator.routes.subscribe(({ sandboxId, route }) => {
      if (sandboxId === id && route?.restAfterMs !== undefined) count += 1;
    });
    return () => count;
  }

  /** An edge, which says of a sandbox that is to stand still what `isBusy` says. */
  function edge(isBusy: () => boolean): void {
    const { routes } = bench.orchestrator;
    routes.attach("edge");
    const answer = ({ revision, sandboxId, route }: RouteChange): void =>
      routes.acknowledge("edge", revision, route?.restAfterMs !== undefined && isBusy() ? [sandboxId] : []);
    routes.acknowledge("edge", routes.revision);
    routes.subscribe((change) => setImmediate(answer, change));
  }

  test("stands still, and its route says so", async () => {
    const id = await frozen();
    const route = bench.orchestrator.routes.get(id);
    assert.equal(route?.restAfterMs, AFTER_MS);
    assert.notEqual(route?.address, undefined);
    assert.equal(bench.orchestrator.stats().frozen, 1);
    assert.equal(bench.orchestrator.stats().running, 1);
  });

  test("wakes once for any number who want to reach it", async () => {
    const id = await frozen();
    thaws = 0;
    const all = await Promise.all(Array.from({ length: 20 }, () => bench.orchestrator.wake(id)));
    assert.deepEqual(new Set(all), new Set([true]));
    assert.equal(thaws, 1);
    assert.equal(bench.orchestrator.routes.get(id)?.restAfterMs, undefined);
  });

  test("keeps its time: neither its rest nor its waking moves it", async () => {
    const id = await frozen();
    const endAtMs = bench.orchestrator.get(id)?.endAtMs;
    await bench.orchestrator.wake(id);
    assert.equal(bench.orchestrator.get(id)?.endAtMs, endAtMs);
    await until("the next freeze", () => bench.stateOf(id) === "frozen");
    await bench.orchestrator.setTimeout(id, 0);
    await until("its end", () => bench.context.entries.all().length === 0);
    assert.deepEqual(await bench.held(), {});
  });

  test("that is used stays awake, and is asked for again later", async () => {
    let isBusy = true;
    edge(() => isBusy);
    const id = await create();
    const offers = countOffers(id);
    await until("a second offer", () => offers() > 1);
    // It was made after the first had been turned down.
    assert.equal(pauses, 0);
    isBusy = false;
    await until("the freeze", () => bench.stateOf(id) === "frozen");
  });

  test("goes on for a moment now and then", async () => {
    const id = await frozen();
    thaws = 0;
    await until("moments", () => thaws >= 2);
    await until("the next freeze", () => bench.stateOf(id) === "frozen");
  });

  test("has its metrics put off by a moment, and not by who wakes it", async (t) => {
    const id = await frozen();
    const { mock } = t.mock.method(bench.context.collector, "putOff");
    thaws = 0;
    await bench.orchestrator.wake(id);
    await until("moments", () => thaws >= 3);
    assert.equal(mock.callCount(), thaws - 1);
  });

  test("is not asked for logs in its moments: it would say that there are some", async () => {
    await frozen();
    const { agents } = bench;
    const before = agents.questions;
    thaws = 0;
    await until("moments", () => thaws >= 3);
    assert.equal(agents.questions, before);
  });

  test("that cannot be frozen goes on", async () => {
    const id = await create();
    bench.host.failNext("pause", new Error("as the test wants"));
    await until("the freeze after that", () => bench.stateOf(id) === "frozen");
  });

  test("that cannot be woken says so, and is woken by the next", async () => {
    const id = await frozen();
    bench.host.failNext("resume", new Error("as the test wants"));
    await assert.rejects(bench.orchestrator.wake(id), isKind("unavailable"));
    assert.equal(await bench.orchestrator.wake(id), true);
  });

  test("is paused, forked, connected to and killed as one that runs", async () => {
    const id = await frozen();
    assert.equal((await bench.orchestrator.connect(id)).resumed, false);
    const [copy] = await bench.orchestrator.fork(id, 1);
    assert.ok(copy !== undefined && "sandbox" in copy);
    await until("the next freeze", () => bench.stateOf(id) === "frozen");
    await bench.orchestrator.pause(id);
    assert.equal(bench.stateOf(id), "paused");
    assert.equal(await bench.orchestrator.wake(id), false);
    assert.equal((await bench.orchestrator.connect(id)).resumed, true);
    await until("the freeze of both", () => bench.orchestrator.stats().frozen === 2);
    await Promise.all([id, copy.sandbox.id].map((one) => bench.orchestrator.kill(one)));
    assert.deepEqual(await bench.held(), {});
  });

  for (const autoResume of [true, false]) {
    const what = autoResume ? "is resumed" : "stays paused";
    test(`that is paused while somebody wakes it ${what}, as its spec says`, async () => {
      const id = await frozen({ autoResume });
      const paused = bench.orchestrator.pause(id);
      assert.equal(await bench.orchestrator.wake(id), false);
      await bench.orchestrator.resumeForTraffic(id, 60_000);
      await paused;
      assert.equal(bench.stateOf(id), autoResume ? "running" : "paused");
    });
  }

  test("whose pause fails runs on, awake", async () => {
    const id = await frozen();
    bench.script.fail("sync");
    await assert.rejects(bench.orchestrator.pause(id), isKind("unavailable"));
    assert.equal(bench.orchestrator.routes.get(id)?.restAfterMs, undefined);
    await until("the next freeze", () => bench.stateOf(id) === "frozen");
  });

  test("that dies ends", async () => {
    const id = await frozen();
    await bench.host.end(`${id}-0001`, "crashed");
    await until("its end", () => bench.context.entries.all().length === 0);
  });

  test("is one of many, of whom a few are looked at in each turn of the event loop, and each stands still some time", async () => {
    let [reads, most] = [0, 0];
    const turn = (): void => {
      [most, reads] = [Math.max(most, reads), 0];
      immediate = setImmediate(turn);
    };
    let immediate = setImmediate(turn);
    try {
      for (let at = 0; at < 120; at += 1) {
        const id = await create();
        const machine = bench.host.running.get(`${id}-0001`);
        assert.ok(machine !== undefined);
        const { stats } = machine;
        machine.stats = () => {
          reads += 1;
          return stats.call(machine);
        };
      }
      const all = bench.orchestrator.list().map(({ id }) => id);
      const stoodStill = new Set<SandboxId>();
      await until("a freeze of each", () => {
        for (const id of all) if (bench.stateOf(id) === "frozen") stoodStill.add(id);
        return stoodStill.size === 120;
      });
    } finally {
      clearImmediate(immediate);
    }
    // Those of a round, those at the end of a moment, and those whose turn it is to be frozen.
    assert.ok(most > 0 && most < 56, `${most} were looked at in one turn`);
  });

  test("is thawed by the next server", async () => {
    const id = await frozen();
    await bench.orchestrator.close();
    thaws = 0;
    await bench.start();
    assert.equal(bench.stateOf(id), "running");
    assert.equal(thaws, 1);
  });
});
