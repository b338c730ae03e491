import { setTimeout as sleep } from "node:timers/promises";
import { AenvError, sandboxNotFound } from "#domain";
import { CheckpointError } from "#driver";
import { capture, removeCheckpoint } from "./checkpoints.ts";
import type { Context } from "./context.ts";
import type { Entry, Incarnation } from "./entry.ts";
import { forget, takeDown } from "./kill.ts";
import type { SandboxRecord } from "./record.ts";
import { routeOf } from "./run.ts";

/** The end of a machine, dozens of processes, takes all the processor there is: begun at once, it held back the answer by
 *  20 ms and more. */
const ANSWER_FIRST_MS = 20;

/**
 * Puts a running sandbox to disk. The machine is frozen, captured, and ended only after the capture is on stable storage and
 * recorded: whatever fails before that, it is thawed and the sandbox runs on as if nothing had been asked. Frozen, it does
 * nothing between the captured moment and its end that anybody outside could see.
 */
export async function pause(context: Context, entry: Entry): Promise<void> {
  const { incarnation } = entry;
  if (incarnation === undefined) throw new AenvError("internal", `running sandbox ${entry.id} has no machine`);
  const startedAtMs = performance.now();
  entry.update({ state: "pausing" });
  const revision = context.routes.set(routeOf(entry, { reachable: false }));
  const dir = context.paths.checkpoint(entry.record.machineId);
  try {
    const drained = context.collector.drain(entry, incarnation);
    await context.journal.save(entry.record);
    await removeCheckpoint(dir);
    await drained;
    await incarnation.machine.pause();
    await capture(context.driver, incarnation.machine, dir, entry.record);
    await context.store.sync([dir]);
    const record = pausedRecord(entry.record, Date.now());
    await context.journal.save(record, { durable: true });
    entry.record = record;
  } catch (error) {
    return await backToRunning(context, entry, incarnation, dir, error);
  }
  entry.incarnation = undefined;
  const { leaving } = entry;
  entry.leaving = context.background.run(`ending the machine of paused ${entry.id}`, async () => {
    await sleep(ANSWER_FIRST_MS);
    await takeDown(context, entry, incarnation, revision);
    await leaving;
  });
  context.logger.info("sandbox paused", {
    sandboxId: entry.id,
    generation: entry.sandbox.generation,
    durationMs: Math.round(performance.now() - startedAtMs),
  });
}

/** Without the slot: it belongs to somebody else soon. */
export function pausedRecord({ slotIndex: _, ...record }: SandboxRecord, pausedAtMs: number): SandboxRecord {
  return {
    ...record,
    sandbox: { ...record.sandbox, state: "paused", endAtMs: pausedAtMs },
    checkpointOf: record.machineId,
  };
}

/** Undoes a pause that failed: the sandbox runs on, or, when its machine is gone, is gone. Always throws. */
async function backToRunning(
  context: Context,
  entry: Entry,
  incarnation: Incarnation,
  dir: string,
  cause: unknown,
): Promise<never> {
  const failed = (what: string) => (error: unknown) =>
    context.logger.error(`${what} failed after a pause had failed`, { sandboxId: entry.id, error });
  await removeCheckpoint(dir).catch(failed("removing the checkpoint"));
  if (cause instanceof CheckpointError && !cause.machineRuns) {
    context.logger.error("sandbox lost: its machine ended while being captured", { sandboxId: entry.id, error: cause });
    await forget(context, entry);
    throw sandboxNotFound(entry.id);
  }
  await incarnation.machine.resume().catch(failed("thawing"));
  entry.update({ state: "running" });
  context.routes.set(routeOf(entry));
  // A record that still says "pausing" is no harm: after a crash the machine is found and goes on running.
  await context.journal.save(entry.record).catch(failed("recording that it runs"));
  throw new AenvError("unavailable", `Sandbox "${entry.id}" could not be paused and goes on running`, {
    cause,
    hint: "look for a full disk on the server: its log has the cause",
  });
}
