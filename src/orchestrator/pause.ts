import { setTimeout as sleep } from "node:timers/promises";
import { AenvError, type MachineCapture, sandboxNotFound } from "#domain";
import { CheckpointError } from "#driver";
import { fault } from "#lib/fault";
import { capture, captureFailed, removeCheckpoint } from "./checkpoints.ts";
import type { Context } from "./context.ts";
import { freeze, requireCapture, thaw } from "./disk-capture.ts";
import type { Entry, Incarnation } from "./entry.ts";
import { forget, takeDown } from "./kill.ts";
import { checkpointIdOf, type SandboxRecord, withoutCheckpoint } from "./record.ts";
import { routeOf } from "./run.ts";

/** The end of a machine, dozens of processes, takes all the processor there is: begun at once, it held back the answer by
 *  20 ms and more. */
const ANSWER_FIRST_MS = 20;

/**
 * Puts a running sandbox to disk. The machine is frozen, captured, and kept or ended only after the capture is on stable storage
 * and recorded: whatever fails before that, it is thawed and the sandbox runs on as if nothing had been asked. Frozen, it does
 * nothing between the captured moment and its end that anybody outside could see. With `disk` its processes end with it.
 */
export async function pause(context: Context, entry: Entry, what: MachineCapture = "memory"): Promise<void> {
  const { incarnation } = entry;
  requireCapture(context.driver, what, "memory");
  if (incarnation === undefined) throw new AenvError("internal", `running sandbox ${entry.id} has no machine`);
  const startedAtMs = performance.now();
  entry.update({ state: "pausing" }, what === "disk" ? { capture: what } : {});
  const revision = context.routes.set(routeOf(entry, { reachable: false }));
  const { machineId } = entry.record;
  const dir = context.paths.checkpoint(checkpointIdOf(entry.record));
  let record: SandboxRecord;
  try {
    const drained = context.collector.drain(entry, incarnation);
    await context.journal.save(entry.record);
    await fault("pause.recorded", machineId);
    await removeCheckpoint(dir);
    await drained;
    await freeze(context, entry, incarnation, what);
    await fault("pause.frozen", machineId);
    await capture(context.driver, incarnation.machine, dir, entry.record, { what, durable: true });
    await fault("pause.captured", machineId);
    await context.store.sync([dir]);
    await fault("pause.synced", machineId);
    record = pausedRecord(entry.record, Date.now());
    await context.journal.save(record, { durable: true });
  } catch (error) {
    return await backToRunning(context, entry, incarnation, dir, error, what);
  }
  entry.incarnation = undefined;
  await fault("pause.paused", machineId);
  const isKept = await keepOrEnd(context, entry, incarnation, revision);
  // Nobody resumes it before it is known what its machine is good for.
  entry.record = record;
  context.logger.info("sandbox paused", {
    sandboxId: entry.id,
    generation: entry.sandbox.generation,
    durationMs: Math.round(performance.now() - startedAtMs),
    reason: isKept ? "its frozen machine is kept" : "its machine is ended",
  });
}

/** The checkpoint is the truth from here on: what is left of the machine may serve the next resume, where there is room. With its
 *  disk alone kept, its memory is what nobody wants to see again. */
async function keepOrEnd(context: Context, entry: Entry, incarnation: Incarnation, revision: number): Promise<boolean> {
  const mayServe = entry.record.capture !== "disk";
  if (mayServe && (await context.ladder.keep(entry, incarnation, revision))) return true;
  const { leaving } = entry;
  entry.leaving = context.background.run(`ending the machine of paused ${entry.id}`, async () => {
    await sleep(ANSWER_FIRST_MS);
    await takeDown(context, entry, incarnation, revision);
    await fault("pause.ended", incarnation.machine.id);
    await leaving;
  });
  return false;
}

/** Without the slot: it belongs to somebody else soon. */
export function pausedRecord({ slotIndex: _, ...record }: SandboxRecord, pausedAtMs: number): SandboxRecord {
  return {
    ...record,
    sandbox: { ...record.sandbox, state: "paused", endAtMs: pausedAtMs },
    checkpointOf: checkpointIdOf(record),
  };
}

/** Undoes a pause that failed: the sandbox runs on, or, when its machine is gone, is gone. Always throws. */
async function backToRunning(
  context: Context,
  entry: Entry,
  incarnation: Incarnation,
  dir: string,
  cause: unknown,
  what: MachineCapture,
): Promise<never> {
  const failed = (what: string) => (error: unknown) =>
    context.logger.error(`${what} failed after a pause had failed`, { sandboxId: entry.id, error });
  await removeCheckpoint(dir).catch(failed("removing the checkpoint"));
  if (cause instanceof CheckpointError && !cause.machineRuns) {
    context.logger.error("sandbox lost: its machine ended while being captured", { sandboxId: entry.id, error: cause });
    await forget(context, entry);
    throw sandboxNotFound(entry.id);
  }
  await thaw(context, entry, incarnation, what).catch(failed("thawing"));
  entry.frozen = undefined;
  entry.record = withoutCheckpoint(entry.record);
  entry.update({ state: "running" });
  context.routes.set(routeOf(entry));
  // A record that still says "pausing" is no harm: after a crash the machine is found and goes on running.
  await context.journal.save(entry.record).catch(failed("recording that it runs"));
  throw captureFailed(cause, `Sandbox "${entry.id}" could not be paused and goes on running`);
}
