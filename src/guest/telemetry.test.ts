import assert from "node:assert/strict";
import { test } from "node:test";
import { parseTelemetry } from "./telemetry.ts";

function answerOf(...ids: readonly unknown[]): string {
  return JSON.stringify({ entries: ids.map((id) => [id, "info", "process", `m${id}`, { pid: "7" }]), more: true });
}

test("entries come with their ids, which grow", () => {
  const { entries, more, reading } = parseTelemetry(answerOf(1, 2, Number.MAX_SAFE_INTEGER));
  assert.deepEqual(
    entries.map(({ idUs }) => idUs),
    [1, 2, Number.MAX_SAFE_INTEGER],
  );
  assert.deepEqual(entries[0], { idUs: 1, level: "info", logger: "process", message: "m1", fields: { pid: "7" } });
  assert.deepEqual([more, reading], [true, undefined]);
  assert.deepEqual(parseTelemetry('{"entries":[]}'), { entries: [], more: false });
});

test("an answer whose ids do not grow, or are none, is refused as a whole", () => {
  for (const ids of [[1, 1], [2, 1], [1, 3, 2], [0], [-1], [1.5], ["1"], [null], [2 ** 53]]) {
    assert.throws(() => parseTelemetry(answerOf(...ids)), /answered \/telemetry with what is none/, String(ids));
  }
});
