import type { Route } from "#domain";
import type { GuestIdentity } from "#guest";
import { type Context, sandboxLease } from "./context.ts";
import type { Entry, Incarnation } from "./entry.ts";
import { end, takeDown } from "./kill.ts";
import { launch } from "./launch.ts";

/** Where a sandbox is restored from, and what the agent captured there asks for. */
export interface StateSource {
  /** The driver's folder. */
  readonly dir: string;
  readonly initKey: string;
}

/** Brings the entry's current generation to life and makes it running: recorded, routed, watched. Its time counts from
 *  here. Undone on error; the record is the caller's. */
export async function bringUp(context: Context, entry: Entry, source: StateSource, timeoutMs: number): Promise<void> {
  const startedAtMs = performance.now();
  const steps: Record<string, number> = {};
  const { spec } = entry.sandbox;
  const incarnation = await launch(
    context,
    {
      machineId: entry.record.machineId,
      imageDigest: entry.record.imageDigest,
      agentDigest: entry.record.agentDigest,
      leaseId: sandboxLease(entry.id),
      resources: spec.resources,
      network: spec.network,
      restoreFrom: source.dir,
      identity: identityOf(entry),
      currentInitKey: source.initKey,
      onSlot: (slot) => entry.update({}, { slotIndex: slot.index }),
    },
    steps,
  );
  entry.incarnation = incarnation;
  const nowMs = Date.now();
  entry.update({ state: "running", endAtMs: nowMs + timeoutMs });
  try {
    await context.journal.save(entry.record);
  } catch (error) {
    entry.incarnation = undefined;
    await takeDown(context, entry, incarnation);
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
  });
}

export function identityOf(entry: Entry): GuestIdentity {
  const { sandbox, initKey } = entry.record;
  return {
    sandboxId: sandbox.id,
    templateId: sandbox.spec.templateId,
    hostname: sandbox.id,
    ...(sandbox.accessToken !== undefined && { accessToken: sandbox.accessToken }),
    env: sandbox.spec.env,
    defaultUser: sandbox.spec.defaultUser,
    ...(sandbox.spec.defaultWorkdir !== undefined && { defaultWorkdir: sandbox.spec.defaultWorkdir }),
    initKey,
  };
}

/** With `reachable: false`, as while it is being paused: known, but nothing is sent to it. */
export function routeOf(entry: Entry, { reachable = true } = {}): Route {
  const { sandbox } = entry;
  const { traffic } = sandbox.spec;
  return {
    sandboxId: sandbox.id,
    generation: sandbox.generation,
    autoResume: sandbox.spec.autoResume,
    ...(reachable &&
      entry.incarnation !== undefined && {
        address: entry.incarnation.slot.hostAddress,
        agentKey: entry.record.initKey,
      }),
    ...(sandbox.accessToken !== undefined && { accessToken: sandbox.accessToken }),
    ...(sandbox.trafficToken !== undefined && { trafficToken: sandbox.trafficToken }),
    ...(traffic?.maskHost !== undefined && { maskHost: traffic.maskHost }),
  };
}

/** A machine that ends by itself takes its sandbox with it. */
export function watch(context: Context, entry: Entry, incarnation: Incarnation): void {
  const { generation } = entry.sandbox;
  const onExit = incarnation.machine.exited.then(async (exit) => {
    if (exit.reason === "stopped") return;
    // An operation under way notices by itself (a checkpoint or a kill fails or finds it gone).
    while (entry.operation !== undefined) await entry.operation;
    if (entry.incarnation !== incarnation || !context.entries.holds(entry)) return;
    context.logger.error("sandbox ended by itself", {
      sandboxId: entry.id,
      generation,
      reason: `${exit.reason}${exit.detail === undefined ? "" : `: ${exit.detail}`}`,
    });
    await end(context, entry);
  });
  onExit.catch((error: unknown) =>
    context.logger.error("cleaning up an ended sandbox failed", { sandboxId: entry.id, error }),
  );
}
