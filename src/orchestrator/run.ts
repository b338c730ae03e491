import type { Route } from "#domain";
import type { MachineExit } from "#driver";
import type { GuestIdentity } from "#guest";
import { fault } from "#lib/fault";
import { type Context, sandboxLease } from "./context.ts";
import type { Entry, Incarnation } from "./entry.ts";
import { end, takeDown } from "./kill.ts";
import { type LaunchPlan, launch } from "./launch.ts";
import { onEnd } from "./machine-end.ts";
import { startAgain } from "./start-again.ts";

/** Where a sandbox comes from. */
export interface StateSource {
  /** The driver's folder. */
  readonly dir: string;
  /** What the agent captured there asks for; absent where there is the disk alone, from which the machine is booted. */
  readonly initKey?: string;
}

/** Brings the entry's current generation to life and makes it running. Undone on error; the record is the caller's. `from`:
 *  what it comes from, and why, for the log. */
export async function bringUp(
  context: Context,
  entry: Entry,
  source: StateSource,
  { timeoutMs, from }: { readonly timeoutMs: number; readonly from: string },
): Promise<void> {
  const startedAtMs = performance.now();
  const steps: Record<string, number> = {};
  const incarnation = await launch(context, planOf(entry, source), steps);
  if (source.initKey === undefined) await startAgain(context, entry, incarnation);
  await goLive(context, entry, incarnation, { timeoutMs, startedAtMs, steps, from });
}

/** How a sandbox came to run, for the log. */
interface Start {
  readonly timeoutMs: number;
  readonly startedAtMs: number;
  readonly steps: Record<string, number>;
  readonly from: string;
}

/** Makes an incarnation whose agent knows who it is the entry's running one: recorded, routed, watched. Its time counts from
 *  here. On error the incarnation is ended. */
export async function goLive(
  context: Context,
  entry: Entry,
  incarnation: Incarnation,
  { timeoutMs, startedAtMs, steps, from }: Start,
): Promise<void> {
  const { state } = entry.sandbox;
  entry.incarnation = incarnation;
  const nowMs = Date.now();
  entry.update({ state: "running", endAtMs: nowMs + timeoutMs });
  try {
    await context.journal.save(entry.record);
    await fault("run.recorded", entry.record.machineId);
  } catch (error) {
    entry.incarnation = undefined;
    // Nobody is to take it for running while it is undone.
    entry.update({ state });
    // Where it was thawed the edge may still know a route to it from before its pause.
    await takeDown(context, entry, incarnation, context.routes.revision);
    throw error;
  }
  context.routes.set(routeOf(entry));
  watch(context, entry, incarnation);
  context.logger.info("sandbox runs", {
    sandboxId: entry.id,
    generation: entry.sandbox.generation,
    slot: incarnation.slot.index,
    durationMs: Math.round(performance.now() - startedAtMs),
    steps,
    reason: from,
  });
}

export function planOf(entry: Entry, source: StateSource): LaunchPlan {
  const { machineId, imageDigest, agentDigest, boot } = entry.record;
  const { resources, network } = entry.sandbox.spec;
  return {
    machineId,
    imageDigest,
    agentDigest,
    leaseId: sandboxLease(entry.id),
    resources,
    network,
    ...(source.initKey === undefined
      ? { diskFrom: source.dir, ...(boot?.init !== undefined && { imageInit: boot.init }) }
      : { restoreFrom: source.dir, currentInitKey: source.initKey }),
    identity: identityOf(entry),
    onSlot: (slot) => entry.update({}, { slotIndex: slot.index }),
  };
}

export function identityOf(entry: Entry): GuestIdentity {
  const { sandbox, initKey } = entry.record;
  return {
    sandboxId: sandbox.id,
    templateId: sandbox.spec.templateId,
    generation: sandbox.generation,
    hostname: sandbox.id,
    ...(sandbox.accessToken !== undefined && { accessToken: sandbox.accessToken }),
    env: sandbox.spec.env,
    defaultUser: sandbox.spec.defaultUser,
    ...(sandbox.spec.defaultWorkdir !== undefined && { defaultWorkdir: sandbox.spec.defaultWorkdir }),
    initKey,
  };
}

/** With `reachable: false`, as while it is being paused: known, but nothing is sent to it. With `restAfterMs`: only after it has been
 *  woken. */
export function routeOf(
  entry: Entry,
  { reachable = true, restAfterMs }: { readonly reachable?: boolean; readonly restAfterMs?: number } = {},
): Route {
  const { sandbox } = entry;
  const { traffic } = sandbox.spec;
  return {
    sandboxId: sandbox.id,
    generation: sandbox.generation,
    autoResume: isResumedByTraffic(entry),
    ...(reachable &&
      entry.incarnation !== undefined && {
        address: entry.incarnation.slot.hostAddress,
        agentKey: entry.record.initKey,
        ...(restAfterMs !== undefined && { restAfterMs }),
      }),
    ...(sandbox.accessToken !== undefined && { accessToken: sandbox.accessToken }),
    ...(sandbox.trafficToken !== undefined && { trafficToken: sandbox.trafficToken }),
    ...(traffic?.maskHost !== undefined && { maskHost: traffic.maskHost }),
  };
}

/** While it is paused. One whose disk alone was kept is not: what the traffic is for would not be there. */
export function isResumedByTraffic({ sandbox, record }: Entry): boolean {
  return sandbox.spec.autoResume && record.capture !== "disk";
}

/** A machine that ends by itself takes its sandbox with it. */
export function watch(context: Context, entry: Entry, incarnation: Incarnation): void {
  entry.watching?.[Symbol.dispose]();
  entry.watching = onEnd(incarnation.machine, (exit) => {
    endByItself(context, entry, incarnation, exit).catch((error: unknown) =>
      context.logger.error("cleaning up an ended sandbox failed", { sandboxId: entry.id, error }),
    );
  });
}

async function endByItself(
  context: Context,
  entry: Entry,
  incarnation: Incarnation,
  { reason, detail }: MachineExit,
): Promise<void> {
  if (reason === "stopped") return;
  // An operation under way notices by itself (a checkpoint or a kill fails or finds it gone).
  while (entry.operation !== undefined) await entry.operation;
  if (entry.incarnation !== incarnation || !context.entries.holds(entry)) return;
  context.logger.error("sandbox ended by itself", {
    sandboxId: entry.id,
    generation: entry.sandbox.generation,
    reason: `${reason}${detail === undefined ? "" : `: ${detail}`}`,
  });
  await end(context, entry);
}
