import type { FaultFired } from "../../src/server/faults.ts";
import type { Content } from "./content.ts";
import type { Verdict } from "./expectation.ts";
import { createBody, LIFE_S } from "./model.ts";
import type { Operation } from "./plan.ts";
import { Violation } from "./violation.ts";
import type { Outcome, World } from "./world.ts";

const COPIES = 2;

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

export function carryOut(world: World, { operation, subject }: Doing): Promise<Answer> {
  switch (operation) {
    case "create":
      return world.call("POST", "/v2/sandboxes", createBody());
    case "pause":
      return world.call("POST", `/sandboxes/${subject}/pause`);
    case "resume":
      return world.call("POST", `/sandboxes/${subject}/connect`, { timeout: LIFE_S });
    case "fork":
      return world.call("POST", `/sandboxes/${subject}/fork`, { count: COPIES });
    case "snapshot":
      return world.call("POST", `/sandboxes/${subject}/snapshots`, {});
    case "kill":
    case "kill-paused":
      return world.call("DELETE", `/sandboxes/${subject}`);
    case "build":
      return world.build().then((status) => ({ status: status === "ready" ? 200 : 500, body: status }));
  }
}

/** How many sandboxes an operation may make. */
export function copiesOf({ operation }: Doing): number {
  if (operation === "fork") return COPIES;
  return operation === "create" ? 1 : 0;
}

/** Reads an answer. The server says when a failed operation has changed nothing, and what failed as on a full disk, with nothing
 *  of ours dying, has changed nothing; other failures promise nothing. */
export function judge(
  { operation }: Doing,
  { status, body }: Answer,
  fired: readonly FaultFired[],
): Pick<Done, "verdict" | "promised" | "said"> {
  const { message } = (body ?? {}) as { message?: string };
  const said = message === undefined ? `${status}` : `${status} ${message}`;
  if (status >= 200 && status < 300) return { verdict: "done", promised: promisedBy(operation, body), said };
  const isRefused = /goes on running/.test(said) || fired.some(({ error }) => error !== undefined);
  return { verdict: isRefused ? "refused" : "unknown", promised: [], said };
}

/** The death of blobd is waited out, and what has failed is not said to be done. */
export function requirePromise({ operation, verdict, said }: Done, fired: readonly FaultFired[]): void {
  const isBlobds = fired.every(({ kill }) => kill?.join() === "blobd");
  if (isBlobds && verdict !== "done") throw new Violation("lost", `${operation} did not outlast blobd: ${said}`);
  const hasFailed = fired.some(({ error }) => error !== undefined) && operation !== "fork";
  if (hasFailed && verdict === "done") throw new Violation("wrong", `${operation} failed and was answered: ${said}`);
}

function promisedBy(operation: Operation, body: unknown): readonly string[] {
  if (operation === "create") return [(body as { sandboxID: string }).sandboxID];
  if (operation !== "fork") return [];
  return (body as { sandbox?: { sandboxID: string } }[]).flatMap(({ sandbox }) => sandbox?.sandboxID ?? []);
}
