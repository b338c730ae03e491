import { fault } from "#lib/fault";
import { atMost } from "./at-most.ts";
import { removeCheckpoint } from "./checkpoints.ts";
import { type Context, sandboxLease } from "./context.ts";
import type { Entry, Incarnation } from "./entry.ts";
import { onEnd } from "./machine-end.ts";

/** An edge that stands still does not keep a kill from its answer for longer. */
const EDGE_WAIT_MS = 1_000;

/** Ends a sandbox for good, once whatever is under way is over. Calls join; after a failure the next one tries again. */
export function end(context: Context, entry: Entry): Promise<void> {
  return context.entries.end(entry, () => kill(context, entry));
}

async function kill(context: Context, entry: Entry): Promise<void> {
  entry.update({ state: "killing" });
  try {
    // Recorded first: after a crash half-way the kill is finished, not undone.
    await context.journal.save(entry.record, { durable: entry.record.checkpointOf !== undefined });
    entry.isEndRecorded = true;
  } catch (error) {
    // A full disk must not keep anybody from ending what fills it.
    context.logger.warn("a kill goes on unrecorded", { sandboxId: entry.id, error });
  }
  await fault("kill.recorded", entry.record.machineId);
  await forget(context, entry);
  context.logger.info("sandbox killed", { sandboxId: entry.id, generation: entry.sandbox.generation });
}

/** Removes all that is left of a sandbox: route, machine, slot, saved state, lease, and last its record. Repeatable. */
export async function forget(context: Context, entry: Entry): Promise<void> {
  entry.doomed = true;
  const revision = context.routes.remove(entry.id);
  const { incarnation } = entry;
  if (incarnation !== undefined) await context.collector.drain(entry, incarnation);
  // Whoever hears of its death finds all that it has said.
  await endTelemetry(context, entry);
  await fault("kill.ended", entry.record.machineId);
  if (incarnation !== undefined) {
    // Until no edge sends anything there any more.
    const unreached = atMost(EDGE_WAIT_MS, context.routes.settled(revision));
    using _ = onEnd(incarnation.machine, () => {
      if (entry.isEndRecorded && entry.leaving === undefined) void unreached.then(() => entry.die());
    });
    await takeDown(context, entry, incarnation, revision);
    await unreached;
  }
  entry.incarnation = undefined;
  await context.ladder.dropCopy(entry.id);
  await entry.leaving;
  if (entry.isEndRecorded) entry.die();
  await fault("kill.stopped", entry.record.machineId);
  const { checkpointOf } = entry.record;
  if (checkpointOf !== undefined) await removeCheckpoint(context.paths.checkpoint(checkpointOf));
  await context.store.release(sandboxLease(entry.id));
  await fault("kill.released", entry.record.machineId);
  await context.journal.remove(entry.id);
  entry.die();
  await fault("kill.forgotten", entry.record.machineId);
  context.entries.remove(entry);
  // Nobody waits for that of others which goes for it.
  void context.background.run("removing old metrics and logs", () => context.telemetry.sweep());
}

/** What cannot be moved aside now, the next start moves. */
async function endTelemetry(context: Context, entry: Entry): Promise<void> {
  await context.telemetry
    .end(entry.id)
    .catch((error: unknown) => context.logger.warn("metrics and logs stay", { sandboxId: entry.id, error }));
}

/** Ends an incarnation that nobody is routed to any more after `revision`, and gives its slot back. */
export async function takeDown(
  context: Context,
  entry: Entry,
  incarnation: Incarnation,
  revision?: number,
): Promise<void> {
  incarnation.guest.close();
  const stopped = incarnation.machine.stop();
  const hasStopped = stopped.then(
    () => true,
    () => false,
  );
  context.departures.add(
    context.background.run(`giving back slot ${incarnation.slot.index} of ${entry.id}`, async () => {
      if (!(await hasStopped)) return;
      if (revision !== undefined) await context.routes.settled(revision);
      await context.slots.release(incarnation.slot);
    }),
  );
  await stopped;
}
