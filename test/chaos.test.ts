import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { FAULT_POINTS, type FaultPoint } from "#lib/fault";
import type { FaultFired } from "../src/server/faults.ts";
import { type Content, FRESH, type Told, wrongIn } from "./chaos/content.ts";
import { judge, requirePromise } from "./chaos/doing.ts";
import { allowedStates } from "./chaos/expectation.ts";
import { factsOf, OPERATIONS } from "./chaos/operations.ts";
import { COVER, planOf, SHORT } from "./chaos/plan.ts";

const ROUNDS = Array.from({ length: 2000 }, (_, round) => round);

describe("the rounds of the chaos run", () => {
  test("know every fault point there is", () => {
    const known = new Set<FaultPoint>(OPERATIONS.flatMap((operation) => factsOf(operation).points));
    assert.deepEqual([...known].sort(), [...FAULT_POINTS].sort(), "a new point belongs to one of operations.ts");
  });

  test("kill aenvd at every point in the long run; in CI somebody dies in nearly every operation", () => {
    const killers = (plans: typeof COVER): typeof COVER =>
      plans.filter(({ orders }) => orders.some(({ kill }) => kill?.includes("aenvd")));
    const points = killers(COVER).flatMap(({ orders }) => orders.map(({ point }) => point));
    assert.deepEqual([...new Set(points)].sort(), [...FAULT_POINTS].sort());
    const operations = new Set(SHORT.map(({ operation }) => operation));
    assert.deepEqual(
      OPERATIONS.filter((operation) => !operations.has(operation)),
      ["upgrade", "pause-frozen", "fork-frozen", "first-rest", "upgrade-empty"],
    );
  });

  test("are each of one setting", () => {
    for (const round of ROUNDS) {
      const { operation, beside = [] } = planOf(7, round);
      const settings = [operation, ...beside].map((each) => factsOf(each).under);
      assert.equal(new Set(settings).size, 1, `round ${round}`);
    }
  });

  test("follow from seed and number alone, differ by seed, and use every point and everybody", () => {
    for (const round of ROUNDS.slice(0, 100)) assert.deepEqual(planOf(7, round), planOf(7, round));
    assert.notDeepEqual(
      ROUNDS.slice(0, 20).map((round) => planOf(7, round)),
      ROUNDS.slice(0, 20).map((round) => planOf(8, round)),
    );
    const orders = ROUNDS.flatMap((round) => planOf(7, round).orders);
    assert.deepEqual([...new Set(orders.map(({ point }) => point))].sort(), [...FAULT_POINTS].sort());
    const victims = new Set(orders.flatMap(({ kill }) => kill ?? []));
    const all = ["aenvd", "agent", "blobd", "command", "edge", "gofer", "keeper", "runtime"];
    assert.deepEqual([...victims].sort(), all);
  });
});

describe("what the chaos run takes for harm", () => {
  const killed = (kill: FaultFired["kill"], more: Partial<FaultFired> = {}): FaultFired[] => [
    { point: "pause.captured", ...(kill !== undefined && { kill }), killed: 1, ...more },
  ];

  test("an answer is a promise; without one it is before or after", () => {
    assert.deepEqual(allowedStates("pause", "done", killed(["aenvd"]), "a"), ["paused"]);
    assert.deepEqual(allowedStates("pause", "refused", killed(["aenvd"]), "a"), ["running"]);
    assert.deepEqual(allowedStates("pause", "unknown", killed(["aenvd"]), "a"), ["running", "paused"]);
    assert.deepEqual(allowedStates("kill", "done", killed(["aenvd"]), "a"), ["gone"]);
  });

  test("who ends a runtime ends what runs in it, and not what is paused", () => {
    const own = killed(["runtime"], { machineId: "a-0001" });
    assert.deepEqual(allowedStates("pause", "unknown", own, "a"), ["running", "paused", "gone"]);
    assert.deepEqual(allowedStates("pause", "done", own, "a"), ["paused"]);
    assert.deepEqual(allowedStates("fork", "done", own, "a"), ["running", "gone"]);
    assert.deepEqual(allowedStates("fork", "done", own, "b"), ["running"], "another's");
    const early = killed(["runtime"], { machineId: "a-0002", point: "launch.answering" });
    assert.deepEqual(allowedStates("resume", "unknown", early, "a"), ["paused"]);
  });

  test("the death of blobd fails nothing, and what failed is not answered", () => {
    const doing = { operation: "pause", subject: "a", content: FRESH } as const;
    const done = { ...doing, promised: [], said: "" };
    assert.throws(() => requirePromise({ ...done, verdict: "unknown" }, killed(["blobd"])), { harm: "lost" });
    requirePromise({ ...done, verdict: "unknown" }, killed(["aenvd", "blobd"]));
    const failed = killed(undefined, { error: "ENOSPC", killed: 0 });
    assert.throws(() => requirePromise({ ...done, verdict: "done" }, failed), { harm: "wrong" });
    assert.equal(judge(doing, { status: 500, body: {} }, failed).verdict, "refused");
    assert.equal(
      judge(doing, { status: 503, body: { message: "… goes on running" } }, killed(["edge"])).verdict,
      "refused",
    );
    assert.equal(judge(doing, { status: 500, body: {} }, killed(["aenvd"])).verdict, "unknown");
  });

  test("a kill is answered when nothing runs any more, whatever of the rest fails", () => {
    const kill = { operation: "kill", subject: "a", content: FRESH, promised: [], said: "" } as const;
    for (const point of ["kill.stopped", "kill.released"] as const) {
      const failed = killed(undefined, { point, error: "ENOSPC", killed: 0 });
      requirePromise({ ...kill, verdict: "done" }, failed);
      assert.throws(() => requirePromise({ ...kill, verdict: "refused" }, failed), { harm: "lost" });
    }
    const before = killed(undefined, { point: "kill.ended", error: "ENOSPC", killed: 0 });
    assert.throws(() => requirePromise({ ...kill, verdict: "done" }, before), { harm: "wrong" });
  });

  test("of what stood ready and has ended nobody hears, and who wants a frozen one reaches it", () => {
    const at = (point: FaultFired["point"], kill: FaultFired["kill"]): FaultFired[] => killed(kill, { point });
    const own = killed(["runtime"], { machineId: "a-0001", point: "copy.thawed" });
    assert.deepEqual(allowedStates("resume-kept", "done", own, "a"), ["running"]);
    const created = { operation: "hot-create", subject: undefined, content: FRESH, promised: [], said: "" } as const;
    const ended = at("clone.thawed", ["runtime"]);
    assert.throws(() => requirePromise({ ...created, verdict: "unknown" }, ended), { harm: "lost" });
    requirePromise({ ...created, verdict: "done" }, killed(undefined, { point: "clone.thawed", error: "ENOSPC" }));
    requirePromise({ ...created, verdict: "unknown" }, at("clone.told", ["runtime"]));
    const woken = { ...created, operation: "wake", subject: "a", verdict: "unknown" } as const;
    assert.throws(() => requirePromise(woken, at("thaw.begun", ["aenvd", "keeper"])), { harm: "lost" });
    requirePromise(woken, at("thaw.begun", ["keeper", "edge"]));
    requirePromise(woken, at("thaw.begun", ["runtime"]));
  });

  test("every byte and every write counts", () => {
    const content: Content = { seed: "s", writes: 3 };
    const told = {
      ...content,
      build: "1",
      memory: "c7ff8bd5ed6f6b5ee1e4a2a2e9d7d4d5",
      file: "0",
    } satisfies Told;
    assert.match(wrongIn(told, content) ?? "", /memory is c7ff.*; file is 0/);
    assert.match(wrongIn({ ...told, writes: 2 }, content) ?? "", /writes is 2, not 3/);
  });
});
