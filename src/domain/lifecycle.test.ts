import assert from "node:assert/strict";
import { test } from "node:test";
import { decide, type LifecycleRequest } from "./lifecycle.ts";
import type { SandboxState } from "./sandbox.ts";

const STATES: readonly SandboxState[] = [
  "creating",
  "running",
  "freezing",
  "frozen",
  "thawing",
  "forking",
  "snapshotting",
  "pausing",
  "paused",
  "resuming",
  "killing",
];
const REQUESTS: readonly LifecycleRequest[] = [
  "kill",
  "pause",
  "connect",
  "resume",
  "fork",
  "snapshot",
  "set-timeout",
  "wake",
];

/** Where an operation under way may end. Failed ones go back or away. */
const NEXT: Readonly<Record<SandboxState, readonly SandboxState[]>> = {
  creating: ["running", "killing"],
  running: [],
  freezing: ["frozen", "running"],
  frozen: [],
  thawing: ["running"],
  forking: ["running"],
  snapshotting: ["running"],
  pausing: ["paused", "running"],
  paused: [],
  resuming: ["running", "paused"],
  killing: [],
};
const isResting = (state: SandboxState): boolean => NEXT[state].length === 0;

test("every request has an answer in every state, and every refusal a reason", () => {
  for (const state of STATES) {
    for (const request of REQUESTS) {
      const decision = decide(state, request);
      assert.ok(
        ["accept", "already", "join", "wait", "wake", "refuse"].includes(decision?.kind),
        `${state}, ${request}`,
      );
      if (decision.kind === "refuse") assert.match(decision.reason, /^is /);
    }
  }
});

test("nobody waits in a state that lasts, and whoever waits is answered in at most one step", () => {
  for (const state of STATES) {
    for (const request of REQUESTS) {
      if (decide(state, request).kind !== "wait") continue;
      assert.ok(!isResting(state), `${request} waits in ${state} for ever`);
      for (const next of NEXT[state])
        assert.notEqual(decide(next, request).kind, "wait", `${request}: ${state}, then ${next}`);
    }
  }
});

test("only what is at rest is changed: accept never meets an operation under way", () => {
  for (const state of STATES.filter((each) => !isResting(each) || each === "killing")) {
    for (const request of REQUESTS) assert.notEqual(decide(state, request).kind, "accept", `${state}, ${request}`);
  }
});

test("what wants a frozen one awake is served as soon as it is", () => {
  for (const request of REQUESTS) {
    const decision = decide("frozen", request).kind;
    if (decision === "wake") assert.equal(decide("running", request).kind, "accept", request);
    else if (request !== "wake") assert.equal(decision, decide("running", request).kind, request);
  }
});

test("kill is never refused", () => {
  for (const state of STATES) assert.notEqual(decide(state, "kill").kind, "refuse", state);
});

test("what is being killed is not there any more for anybody else", () => {
  for (const request of REQUESTS.filter((each) => each !== "kill")) {
    const decision = decide("killing", request);
    assert.ok(decision.kind === "refuse" && decision.error === "not-found", request);
  }
});

for (const [state, request, kind] of [
  ["paused", "pause", "refuse"],
  ["pausing", "pause", "join"],
  ["pausing", "connect", "wait"],
  ["paused", "connect", "accept"],
  ["running", "connect", "already"],
  ["running", "resume", "refuse"],
  ["paused", "fork", "refuse"],
  ["paused", "set-timeout", "refuse"],
  ["forking", "kill", "wait"],
  ["frozen", "connect", "already"],
  ["frozen", "fork", "wake"],
  ["frozen", "snapshot", "wake"],
  ["frozen", "resume", "refuse"],
  ["snapshotting", "kill", "wait"],
  ["snapshotting", "pause", "wait"],
  ["snapshotting", "connect", "already"],
  ["snapshotting", "resume", "refuse"],
  ["snapshotting", "snapshot", "refuse"],
  ["paused", "snapshot", "refuse"],
  ["paused", "wake", "already"],
] as const) {
  test(`as E2B's clients expect: ${request} while ${state} is ${kind}`, () => {
    assert.equal(decide(state, request).kind, kind);
  });
}
