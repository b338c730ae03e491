import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { type Bar, judge } from "./bench/figure.ts";
import { tableOf } from "./bench/report.ts";
import { alternate } from "./bench/sampling.ts";
import { median, percentile } from "./bench/statistics.ts";

const RATIO: Bar = { kind: "baseline", factor: 1.15, plus: 1.5 };

function against(samples: readonly number[], baseline: readonly number[]) {
  return judge(RATIO, "ms", { samples, baseline: { samples: baseline, command: "raw" }, notes: [] });
}

describe("bench", () => {
  test("median and percentile by nearest rank, in whatever order", () => {
    assert.equal(median([9, 1, 5]), 5);
    assert.equal(median([4, 1, 2, 3]), 2.5);
    const hundred = Array.from({ length: 100 }, (_, at) => 100 - at);
    assert.equal(percentile(hundred, 99), 99);
    assert.equal(percentile([1, 2, 3], 99), 3);
    assert.throws(() => median([]), RangeError);
  });

  test("a bar holds up to factor × baseline + plus, and not above", () => {
    const holds = against([13, 13, 99], [10, 10, 10]);
    assert.deepEqual([holds.n, holds.median, holds.baseline, holds.ratio, holds.bar], [3, 13, 10, 1.3, 1.3]);
    assert.equal(holds.holds, true);
    assert.equal(against([13.1], [10]).holds, false);
    assert.throws(() => judge(RATIO, "ms", { samples: [1], notes: [] }), RangeError);
  });

  test("an absolute bar needs no baseline", () => {
    const of = (left: number) =>
      judge({ kind: "absolute", most: 0 }, "leftovers", { samples: [left], count: 200, notes: [] });
    assert.deepEqual([of(0).holds, of(0).n, of(0).ratio], [true, 200, null]);
    assert.equal(of(1).holds, false);
  });

  test("sides take turns, the first one changes, and the first round does not count", async () => {
    const turns: string[] = [];
    const side = (name: string) => async () => turns.push(name);
    const taken = await alternate({ samples: 2, say: () => {} }, { a: side("a"), b: side("b") });
    assert.deepEqual(turns, ["a", "b", "b", "a", "a", "b"]);
    assert.deepEqual(taken, { a: [4, 5], b: [3, 6] });
  });

  test("the table says what does not hold", () => {
    const figure = { name: "some", title: "a thing", unit: "ms", bar: RATIO, run: () => Promise.reject() } as const;
    const table = tableOf([{ figure, result: against([20], [10]), notes: ["seen"] }]);
    assert.match(table, /^some +1 +20\.0 ms +20\.0 ms +10\.0 ms +2\.00 x +<= 1\.15 x \+ 1\.5 ms +NO$/m);
    assert.match(table, /baseline: raw\n {2}seen/);
  });
});
