import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { FAULT_POINTS, type FaultPoint } from "#lib/fault";
import type { FaultFired } from "../src/server/faults.ts";
import { type Content, FRESH, type Told, wrongIn } from "./chaos/content.ts";
import { judge, requirePromise } from "./chaos/doing.ts";
import { allowedStates } from "./chaos/expectation.ts";
import { COVER, OPERATIONS, planOf, pointsOf, RECOVERY, SHORT } from "./chaos/plan.ts";

const ROUNDS = Array.from({ length: 2000 }, (_, round) => round);

describe("the rounds of the chaos run", () => {
  test("know every fault point there is", () => {
    const known = new Set<FaultPoint>([...RECOVERY, ...OPERATIONS.flatMap(pointsOf)]);
    assert.deepEqual([...known].sort(), [...FAULT_POINTS].sort(), "a new point belongs to an operation of plan.ts");
  });

  test("kill aenvd at every point in the long run, and in CI at all but those of builds", () => {
    const killedAt = (plans: typeof COVER): Set<string> =>
      new Set(
        plans.flatMap(({ orders }) => orders.flatMap(({ point, kill }) => (kill?.includes("aenvd") ? [point] : []))),
      );
    assert.deepEqual([...killedAt(COVER)].sort(), [...FAULT_POINTS].sort());
    const missing = OPERATIONS.filter((operation) => operation !== "build")
      .flatMap(pointsOf)
      .filter((point) => !killedAt(SHORT).has(point));
    assert.deepEqual(missing, []);
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
    assert.deepEqual([...victims].sort(), ["aenvd", "blobd", "edge", "keeper", "runtime"]);
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
