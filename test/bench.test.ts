import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, test } from "node:test";
import { atOnce } from "./bench/at-once.ts";
import { type Bar, judge } from "./bench/figure.ts";
import { tableOf } from "./bench/report.ts";
import { alternate } from "./bench/sampling.ts";
import { median, percentile, spread } from "./bench/statistics.ts";
import { type Step, Stopwatch } from "./bench/stopwatch.ts";

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

  test("an absolute bar may hold the 99th percentile too", () => {
    const of = (last: number) =>
      judge({ kind: "absolute", most: 15, p99: 60 }, "ms", { samples: [10, 11, 12, last], notes: [] }).holds;
    assert.deepEqual([of(60), of(61)], [true, false]);
  });

  test("a spread names all that is asked of latencies", () => {
    const hundred = Array.from({ length: 100 }, (_, at) => at + 1);
    assert.equal(spread(hundred), "min 1.0, p50 50.5, p95 95.0, p99 99.0, max 100.0 ms");
  });

  test("so many at a time, results in their order, the first failure once nothing is under way", async () => {
    let [running, most] = [0, 0];
    const work = async (item: number): Promise<number> => {
      running += 1;
      most = Math.max(most, running);
      await new Promise((resolve) => setImmediate(resolve));
      running -= 1;
      if (item < 0) throw new Error(`no ${item}`);
      return item * 2;
    };
    assert.deepEqual(await atOnce(2, [1, 2, 3, 4, 5], work), [2, 4, 6, 8, 10]);
    assert.equal(most, 2);
    await assert.rejects(atOnce(2, [1, -2, 3], work), /no -2/);
    assert.equal(running, 0);
  });

  test("the stopwatch carries out parallel steps at the same time, and says when one fails", async () => {
    const dir = mkdtempSync(join(tmpdir(), "aenv-stopwatch-"));
    const run = (script: string): Step => ({ run: ["/bin/sh", "-c", script, "sh", dir], log: join(dir, "log") });
    const stopwatch = new Stopwatch();
    try {
      await stopwatch.time([run('mkfifo "$1/meet"')]);
      // Each waits for the other.
      const meeting = [[run('echo here > "$1/meet"')], [run('read said < "$1/meet"; test "$said" = here')]];
      assert.equal((await stopwatch.time([{ parallel: meeting, width: 2 }])).length, 1);
      const failing = stopwatch.time([{ parallel: [[run("true")], [run("echo why >&2; exit 3")]], width: 2 }]);
      await assert.rejects(failing, /ended with 3: why/);
    } finally {
      await stopwatch.close();
      rmSync(dir, { recursive: true });
    }
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
