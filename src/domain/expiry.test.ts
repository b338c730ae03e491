import assert from "node:assert/strict";
import { test } from "node:test";
import { expiryOf } from "./expiry.ts";
import type { Sandbox, SandboxState } from "./sandbox.ts";

const END_AT_MS = 1_000;
const RETENTION_MS = 500;

function expiry(state: SandboxState, pausedRetentionMs?: number) {
  const spec = { onTimeout: "pause" } as Sandbox["spec"];
  return expiryOf({ state, endAtMs: END_AT_MS, spec }, pausedRetentionMs);
}

test("what runs ends by its own timeout, however long paused ones are kept", () => {
  for (const state of ["running", "frozen"] as const) {
    for (const retentionMs of [undefined, RETENTION_MS]) {
      assert.deepEqual(expiry(state, retentionMs), { atMs: END_AT_MS, action: "pause" });
    }
  }
});

test("what is paused is kept for ever, or for so long after its pause, and then killed", () => {
  assert.equal(expiry("paused"), undefined);
  assert.deepEqual(expiry("paused", RETENTION_MS), { atMs: END_AT_MS + RETENTION_MS, action: "kill" });
});

test("what somebody is at work on is ended by no time", () => {
  const atWork: readonly SandboxState[] = [
    "creating",
    "freezing",
    "thawing",
    "forking",
    "snapshotting",
    "pausing",
    "resuming",
    "killing",
  ];
  for (const state of atWork) assert.equal(expiry(state, RETENTION_MS), undefined, state);
});
