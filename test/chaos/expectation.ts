import type { FaultPoint } from "#lib/fault";
import type { FaultFired } from "../../src/server/faults.ts";
import type { Operation } from "./plan.ts";

export type State = "running" | "paused" | "gone";

/** An operation's answer: done, refused (nothing has happened), or none that could be relied on. */
export type Verdict = "done" | "refused" | "unknown";

const BEFORE: Readonly<Record<Operation, State>> = {
  create: "gone",
  pause: "running",
  resume: "paused",
  fork: "running",
  snapshot: "running",
  kill: "running",
  "kill-paused": "paused",
  build: "gone",
};
const AFTER: Readonly<Record<Operation, State>> = {
  create: "running",
  pause: "paused",
  resume: "running",
  fork: "running",
  snapshot: "running",
  kill: "gone",
  "kill-paused": "gone",
  build: "gone",
};

/** A machine that ends here has not been told who it is: nobody can take it for running. */
const BEFORE_READY: readonly FaultPoint[] = ["launch.prepared", "launch.started", "launch.answering"];

/** The state an operation's subject has to be in for it. */
export function stateFor(operation: Operation): "running" | "paused" | undefined {
  const state = BEFORE[operation];
  return state === "gone" ? undefined : state;
}

/**
 * What may have become of an operation's subject. An answer is a promise; without one it is before or after, and nothing else.
 * Who ends a sandbox's runtime ends what ran in it, and never what is paused; a kill that has begun is finished.
 */
export function allowedStates(
  operation: Operation,
  verdict: Verdict,
  fired: readonly FaultFired[],
  subject: string | undefined,
): readonly State[] {
  const killedAt = fired.find(({ kill, machineId }) => kill?.includes("runtime") && sandboxOf(machineId) === subject);
  const states: Record<Verdict, readonly State[]> = {
    done: [AFTER[operation]],
    refused: [operation.startsWith("kill") ? "gone" : BEFORE[operation]],
    unknown: [BEFORE[operation], AFTER[operation]],
  };
  const allowed = states[verdict];
  if (killedAt === undefined) return allowed;
  if (operation === "resume") {
    const isEarly = killedAt.delayMs === undefined && BEFORE_READY.includes(killedAt.point);
    return isEarly ? ["paused"] : ["running", "paused", "gone"];
  }
  return allowed.includes("running") ? [...allowed, "gone"] : allowed;
}

/** `i…-0001` → `i…`. */
export function sandboxOf(machineId: string | undefined): string | undefined {
  return machineId?.replace(/-[0-9a-f]{4}$/, "");
}
