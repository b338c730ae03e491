import { fault } from "#lib/fault";
import { atMost } from "./at-most.ts";
import { removeCheckpoint } from "./checkpoints.ts";
import { type Context, sandboxLease } from "./context.ts";
import type { Entry, Incarnation } from "./entry.ts";

/** An edge that stands still does not keep a kill from its answer for longer. */
const EDGE_WAIT_MS = 1_000;

/** Ends a sandbox for good, once whatever is under way is over. Calls join; after a failure the next one tries again. */
export function end(context: Context, entry: Entry): Promise<void> {
  return context.entries.end(entry, () => kill(context, entry));
}

async function kill(context: Context, entry: Entry): Promise<void> {
  entry.update({ state: "killing" });
  const isDurable = entry.record.checkpointOf !== undefined;
  const isRecorded = record(context, entry, isDurable);
  // A sync may take long, and what is said meanwhile is heard too.
  if (isDurable) await isRecorded;
  const parting = part(context, entry);
  await isRecorded;
  await fault("kill.recorded", entry.record.machineId);
  await forget(context, entry, parting);
  context.logger.info("sandbox killed", { sandboxId: entry.id, generation: entry.sandbox.generation });
}

/** Recorded first: after a crash half-way the kill is finished, not undone. */
async function record(context: Context, entry: Entry, durable: boolean): Promise<void> {
  try {
    await context.journal.save(entry.record, { durable });
    entry.isEndRecorded = true;
  } catch (error) {
    // A full disk must not keep anybody from ending what fills it.
    context.logger.warn("a kill goes on unrecorded", { sandboxId: entry.id, error });
  }
}

interface Parting {
  /** Of the first route table without it. */
  readonly revision: number;
  /** What it has said until then is kept. Never rejects. */
  readonly isDrained: Promise<void>;
}

/** Nothing of it is undone by this, so it need not be recorded before. */
function part(context: Context, entry: Entry): Parting {
  entry.doomed = true;
  const revision = context.routes.remove(entry.id);
  const { incarnation } = entry;
  return {
    revision,
    isDrained: incarnation === undefined ? Promise.resolve() : context.collector.drain(entry, incarnation),
  };
}

/** Removes all that is left of a sandbox: route, machine, slot, saved state, lease, and last its record. Repeatable. */
export async function forget(
  context: Context,
  entry: Entry,
  { revision, isDrained }: Parting = part(context, entry),
): Promise<void> {
  const { incarnation } = entry;
  await isDrained;
  // Whoever hears of its death finds all that it has said.
  await endTelemetry(context, entry);
  await fault("kill.ended", entry.record.machineId);
  if (incarnation !== undefined) {
    // Until no edge sends anything there any more.
    const isUnreached = atMost(EDGE_WAIT_MS, context.routes.settled(revision));
    const isStopped = takeDown(context, entry, incarnation, revision);
    if (entry.isEndRecorded && entry.leaving === undefined) {
      // It has been killed; only a stop that has failed by then keeps it from being dead.
      await Promise.race([isStopped.then(() => isUnreached), isUnreached]);
      entry.die();
    }
    await Promise.all([isStopped, isUnreached]);
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
