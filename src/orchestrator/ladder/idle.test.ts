import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { type IdleWindow, look } from "./idle.ts";

describe("whether a machine is idle", () => {
  const FULL_MS = 30_000;
  const window: IdleWindow = { sinceMs: 0, cpuUsec: 0, lengthMs: FULL_MS, isFromSwap: false };

  test("one that did next to nothing in all of its window is", () => {
    assert.equal(look(window, { nowMs: 29_999, cpuUsec: 100_000, fullMs: FULL_MS }).isIdle, false);
    assert.deepEqual(look(window, { nowMs: 30_000, cpuUsec: 100_000, fullMs: FULL_MS }), { window, isIdle: true });
  });

  test("one that did something is watched anew, from then on", () => {
    const seen = look(window, { nowMs: 10_000, cpuUsec: 200_000, fullMs: FULL_MS });
    assert.deepEqual(seen, {
      window: { sinceMs: 10_000, cpuUsec: 200_000, lengthMs: FULL_MS, isFromSwap: false },
      isIdle: false,
    });
  });

  test("one that was let go on for a moment and did something gets a whole window again", () => {
    const moment = { ...window, lengthMs: 300 };
    assert.equal(look(moment, { nowMs: 300, cpuUsec: 10_000, fullMs: FULL_MS }).isIdle, true);
    const seen = look(moment, { nowMs: 300, cpuUsec: 30_000, fullMs: FULL_MS });
    assert.deepEqual([seen.isIdle, seen.window.lengthMs], [false, FULL_MS]);
  });

  test("what comes back from swap costs one something that did nothing, and in that moment only", () => {
    const moment = { ...window, lengthMs: 300, isFromSwap: true };
    assert.equal(look(moment, { nowMs: 300, cpuUsec: 30_000, fullMs: FULL_MS }).isIdle, true);
    const seen = look(moment, { nowMs: 300, cpuUsec: 50_000, fullMs: FULL_MS });
    assert.deepEqual([seen.isIdle, seen.window.isFromSwap], [false, false]);
  });
});
