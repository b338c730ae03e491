import type { SandboxState } from "./sandbox.ts";

/** What clients, the reaper and the machine itself ask of a sandbox. `wake`: that it does not stand still, if it runs. */
export type LifecycleRequest = "kill" | "pause" | "connect" | "resume" | "fork" | "snapshot" | "set-timeout" | "wake";

/**
 * What to do with a request. `wait`: for the operation under way to settle, then decide again. `join`: share the result of
 * the same operation under way. `already`: nothing to do, it is so. `wake`: it stands still, and is decided again when it has been
 * woken.
 */
export type Decision =
  | { readonly kind: "accept" }
  | { readonly kind: "already" }
  | { readonly kind: "join" }
  | { readonly kind: "wait" }
  | { readonly kind: "wake" }
  | { readonly kind: "refuse"; readonly error: "conflict" | "not-found"; readonly reason: string };

const ACCEPT: Decision = { kind: "accept" };
const ALREADY: Decision = { kind: "already" };
const JOIN: Decision = { kind: "join" };
const WAIT: Decision = { kind: "wait" };
const WAKE: Decision = { kind: "wake" };
const GONE: Decision = { kind: "refuse", error: "not-found", reason: "is being killed" };

function conflict(reason: string): Decision {
  return { kind: "refuse", error: "conflict", reason };
}

/**
 * The whole lifecycle policy: pure, total, no clock. The table is E2B's where its SDKs can tell the difference (pause of a
 * paused sandbox is a conflict, concurrent pauses all succeed, connect waits for a pause under way and then resumes, of two
 * snapshots at once one is a conflict) and the safest reading elsewhere: kill always wins, everything else waits for what is
 * under way. One that is frozen answers as if it ran, and is woken only for what needs it awake.
 */
export function decide(state: SandboxState, request: LifecycleRequest): Decision {
  if (state === "killing") return request === "kill" ? JOIN : GONE;
  if (request === "kill") return state === "running" || state === "frozen" || state === "paused" ? ACCEPT : WAIT;
  switch (state) {
    case "creating":
    case "resuming":
    case "forking":
    case "freezing":
    case "thawing":
      return WAIT;
    case "snapshotting":
      // It goes on running and stays reachable: that is all that connect wants.
      if (request === "connect" || request === "wake") return ALREADY;
      if (request === "resume") return conflict("is already running");
      return request === "snapshot" ? conflict("is being captured in another snapshot") : WAIT;
    case "pausing":
      if (request === "wake") return ALREADY;
      if (request === "pause") return JOIN;
      return request === "set-timeout" ? conflict("is being paused") : WAIT;
    case "paused":
      if (request === "wake") return ALREADY;
      if (request === "connect" || request === "resume") return ACCEPT;
      return conflict(request === "pause" ? "is already paused" : "is paused");
    case "running":
      if (request === "connect" || request === "wake") return ALREADY;
      if (request === "resume") return conflict("is already running");
      return ACCEPT;
    case "frozen":
      if (request === "connect") return ALREADY;
      if (request === "resume") return conflict("is already running");
      return request === "wake" || request === "pause" || request === "set-timeout" ? ACCEPT : WAKE;
  }
}
