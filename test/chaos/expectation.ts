import type { FaultPoint } from "#lib/fault";
import type { FaultFired, Victim } from "../../src/server/faults.ts";
import { before, factsOf, type Operation, type State } from "./operations.ts";

/** An operation's answer: done, refused (nothing has happened), or none that could be relied on. */
export type Verdict = "done" | "refused" | "unknown";

/** A machine that ends here has not been told who it is: nobody can take it for running. */
const BEFORE_READY: readonly FaultPoint[] = ["launch.prepared", "launch.started", "launch.answering"];
/** Nor one that stood ready: what it stood for is restored instead. */
const INSTEAD: readonly FaultPoint[] = ["copy.thawed", "clone.thawed"];
/** Of one that runs no more something is left, which is tried again. */
const AFTER_DEATH: readonly FaultPoint[] = ["kill.stopped", "kill.released"];
/** What stood ready and has ended, or not been made, nobody hears of. Nor of memory that stays. */
const UNHEARD: readonly FaultPoint[] = [
  ...INSTEAD,
  ...AFTER_DEATH,
  "copy.kept",
  "clone.frozen",
  "reclaim.room",
  "swap.reserved",
];

/** Those of whom a machine ends. */
const ENDS_MACHINE: readonly Victim[] = ["runtime", "gofer", "agent"];

/** True when an order has ended a machine. */
export function endsMachine({ kill = [] }: FaultFired): boolean {
  return kill.some((victim) => ENDS_MACHINE.includes(victim));
}

/** True when an operation has to be answered as if nothing had happened. */
export function isUnheard({ point, kill, error, delayMs }: FaultFired): boolean {
  if (!UNHEARD.includes(point) || delayMs !== undefined) return false;
  return error !== undefined || kill?.every((victim) => ENDS_MACHINE.includes(victim)) === true;
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
  const endedAt = fired.find((one) => endsMachine(one) && sandboxOf(one.machineId) === subject);
  const { after } = factsOf(operation);
  const states: Record<Verdict, readonly State[]> = {
    done: [after],
    refused: [operation.startsWith("kill") ? "gone" : before(operation)],
    unknown: [before(operation), after],
  };
  const allowed = states[verdict];
  if (endedAt === undefined) return allowed;
  if (operation.startsWith("resume")) {
    const isAtOnce = endedAt.delayMs === undefined && endedAt.kill?.includes("runtime") === true;
    if (isAtOnce && INSTEAD.includes(endedAt.point)) return ["running"];
    return isAtOnce && BEFORE_READY.includes(endedAt.point) ? ["paused"] : ["running", "paused", "gone"];
  }
  return allowed.includes("running") ? [...allowed, "gone"] : allowed;
}

/** `i…-0001` → `i…`. */
export function sandboxOf(machineId: string | undefined): string | undefined {
  return machineId?.replace(/-[0-9a-f]{4}$/, "");
}
