import type { FaultPoint } from "#lib/fault";
import type { FaultFired } from "../../src/server/faults.ts";
import type { Content } from "./content.ts";
import { endsMachine, isUnheard, type Verdict } from "./expectation.ts";
import { createBody, LIFE_S } from "./model.ts";
import type { Operation } from "./operations.ts";
import { Violation } from "./violation.ts";
import type { Outcome, World } from "./world.ts";

const COPIES = 2;
/** Of what comes by itself. */
const NOTHING_ASKED: Answer = { status: 200, body: undefined };

/** An operation of a round, and what its subject held when it began; that of a create is a new sandbox. */
export interface Doing {
  readonly operation: Operation;
  readonly subject: string | undefined;
  readonly content: Content;
}

/** What it was answered, and which sandboxes that answer promises. */
export interface Done extends Doing {
  readonly verdict: Verdict;
  readonly promised: readonly string[];
  readonly said: string;
}

export type Answer = Outcome<unknown>;

export async function carryOut(world: World, { operation, subject = "" }: Doing): Promise<Answer> {
  switch (operation) {
    case "create":
    case "hot-create":
      return world.call("POST", "/v2/sandboxes", createBody());
    case "pause":
    case "pause-kept":
    case "pause-frozen":
      return world.call("POST", `/sandboxes/${subject}/pause`);
    case "resume":
    case "resume-kept":
      return world.call("POST", `/sandboxes/${subject}/connect`, { timeout: LIFE_S });
    case "fork":
    case "fork-frozen":
      return world.call("POST", `/sandboxes/${subject}/fork`, { count: COPIES });
    case "snapshot":
      return world.call("POST", `/sandboxes/${subject}/snapshots`, {});
    case "kill":
    case "kill-paused":
    case "kill-kept":
      return world.call("DELETE", `/sandboxes/${subject}`);
    case "build":
      return world.build().then((status) => ({ status: status === "ready" ? 200 : 500, body: status }));
    case "rest":
      return NOTHING_ASKED;
    case "first-rest":
      return world.withoutSwap().then(() => NOTHING_ASKED);
    case "wake":
      return outcome(world.ask(subject));
    case "upgrade":
      return outcome(world.upgrade("all"));
    case "upgrade-ready":
    case "upgrade-empty":
      return outcome(world.upgrade("aenvd"));
  }
}

async function outcome(work: Promise<unknown>): Promise<Answer> {
  return work.then(
    (body): Answer => ({ status: 200, body }),
    (error: unknown) => ({ status: 0, body: undefined, error }),
  );
}

/** How many sandboxes an operation may make. */
export function copiesOf({ operation }: Doing): number {
  if (isFork(operation)) return COPIES;
  return isCreate(operation) ? 1 : 0;
}

/** Reads an answer. The server says when a failed operation has changed nothing, and what failed as on a full disk, with nothing
 *  of ours dying, has changed nothing; other failures promise nothing. */
export function judge(
  { operation }: Doing,
  { status, body, ...rest }: Answer,
  fired: readonly FaultFired[],
): Pick<Done, "verdict" | "promised" | "said"> {
  const { message = "error" in rest ? String(rest.error) : undefined } = (body ?? {}) as { message?: string };
  const said = message === undefined ? `${status}` : `${status} ${message}`;
  if (status >= 200 && status < 300) return { verdict: "done", promised: promisedBy(operation, body), said };
  const isRefused = /goes on running/.test(said) || fired.some(({ error }) => error !== undefined);
  return { verdict: isRefused ? "refused" : "unknown", promised: [], said };
}

/** The death of blobd is waited out, and what has failed is not said to be done. */
export function requirePromise({ operation, verdict, said }: Done, fired: readonly FaultFired[]): void {
  const isBlobds = fired.every(({ kill }) => kill?.join() === "blobd");
  if (isBlobds && verdict !== "done") throw new Violation("lost", `${operation} did not outlast blobd: ${said}`);
  const isNoticed = fired.some((one) => !isUnheard(one));
  if (!isNoticed && verdict !== "done") throw new Violation("lost", `${operation} was not done all the same: ${said}`);
  // Who wants to reach it waits for all but the edge.
  const mayFail = fired.some((one) => one.kill?.includes("edge") === true || endsMachine(one));
  if (operation === "wake" && !mayFail && verdict !== "done") throw new Violation("lost", `nobody was woken: ${said}`);
  const hasFailed = isNoticed && fired.some(({ point, error }) => error !== undefined && isFailing(operation, point));
  if (hasFailed && verdict === "done") throw new Violation("wrong", `${operation} failed and was answered: ${said}`);
}

/** One copy of several may fail; and after a hot create the next clone is launched. */
function isFailing(operation: Operation, point: FaultPoint): boolean {
  return !isFork(operation) && !(operation === "hot-create" && point.startsWith("launch."));
}

function promisedBy(operation: Operation, body: unknown): readonly string[] {
  if (isCreate(operation)) return [(body as { sandboxID: string }).sandboxID];
  if (!isFork(operation)) return [];
  return (body as { sandbox?: { sandboxID: string } }[]).flatMap(({ sandbox }) => sandbox?.sandboxID ?? []);
}

function isCreate(operation: Operation): boolean {
  return operation === "create" || operation === "hot-create";
}

function isFork(operation: Operation): boolean {
  return operation === "fork" || operation === "fork-frozen";
}
