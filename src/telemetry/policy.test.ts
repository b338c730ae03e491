import assert from "node:assert/strict";
import { test } from "node:test";
import type { Metric } from "#domain";
import { endedName, isExpired, parseEndedName, thin } from "./policy.ts";
import { overlapping, parseLines, segmentFirstId, segmentName, surplus } from "./segments.ts";

const HOUR_MS = 3_600_000;
const MIB = 1024 * 1024;

function every5s(spanMs: number): Metric[] {
  return Array.from({ length: spanMs / 5_000 }, (_, at) => ({
    atMs: 1_893_456_000_000 + at * 5_000,
    cpuCount: 2,
    cpuUsedPct: at % 100,
    memUsedBytes: at,
    memTotalBytes: 1000,
    memCacheBytes: 1,
    diskUsedBytes: 10_000 - at,
    diskTotalBytes: 20_000,
  }));
}

test("an answer has fewer than a thousand points, and its peaks are those of the readings", () => {
  for (const [hours, points] of [
    [0.5, 360],
    [1, 120],
    [3, 360],
    [8, 480],
    [20, 600],
    [48, 576],
    [200, 800],
  ] as const) {
    const metrics = every5s(hours * HOUR_MS);
    const thinned = thin(metrics, hours * HOUR_MS);
    assert.equal(thinned.length, points, `${hours} h`);
    assert.equal(thinned[0]?.atMs, metrics[0]?.atMs);
    assert.equal(Math.max(...thinned.map(({ cpuUsedPct }) => cpuUsedPct)), 99);
  }
  const [first] = thin(every5s(HOUR_MS), HOUR_MS);
  assert.deepEqual([first?.cpuUsedPct, first?.memUsedBytes, first?.diskUsedBytes], [5, 5, 10_000]);
  assert.deepEqual(thin([], 48 * HOUR_MS), []);
});

test("segments: names, which go, and which may hold a range", () => {
  assert.equal(segmentName("logs", 17), "logs-0000000000000017");
  assert.equal(segmentFirstId("logs-0000000000000017", "logs"), 17);
  for (const name of ["logs-17", "metrics-0000000000000017", "logs-0000000000000017.tmp", "x"])
    assert.equal(segmentFirstId(name, "logs"), undefined, name);
  const segments = [10, 20, 30, 40, 50, 60].map((firstId) => ({ firstId, bytes: 1 }));
  const ids = (some: readonly { readonly firstId: number }[]) => some.map(({ firstId }) => firstId);
  assert.deepEqual(ids(surplus(segments)), [10, 20]);
  assert.deepEqual(ids(surplus(segments.slice(0, 3))), []);
  for (const [from, to, expected] of [
    [0, 9, []],
    [0, 10, [10]],
    [19, 20, [10, 20]],
    [25, 25, [20]],
    [30, 30, [30]],
    [61, 1e15, [60]],
  ] as const)
    assert.deepEqual(ids(overlapping(segments, from, to)), expected, `${from}-${to}`);
  assert.deepEqual(parseLines('[1,2]\nrubbish\n[-1,2]\n[x,2]\n[3,"a,b"]\n[4,'), [
    { id: 1, text: "[1,2]" },
    { id: 3, text: '[3,"a,b"]' },
  ]);
});

test("what has ended goes by age and by the size of all", () => {
  const ended = { id: "i0123456789abcdefghi", endedAtMs: 1_000_000, bytes: 77 };
  assert.deepEqual(parseEndedName(endedName(ended)), ended);
  for (const name of ["x", "1-2-notanid", "1-2-i0123456789abcdefghi.tmp"])
    assert.equal(parseEndedName(name), undefined);
  assert.equal(isExpired(ended, 512 * MIB, 1_000_000 + 7 * 24 * HOUR_MS), false);
  assert.equal(isExpired(ended, 512 * MIB, 1_000_001 + 7 * 24 * HOUR_MS), true);
  assert.equal(isExpired(ended, 512 * MIB + 1, 1_000_000), true);
});
