import { fault } from "#lib/fault";
import type { Context } from "../context.ts";
import type { Entry } from "../entry.ts";
import { takeDown } from "../kill.ts";
import { guestIn, type LaunchSteps, marker, whileAlive } from "../launch.ts";
import type { SandboxRecord } from "../record.ts";
import { goLive, identityOf } from "../run.ts";

/**
 * Makes the kept copy of a sandbox that is being resumed its running machine, which keeps its old id. False: there is none, or
 * it is of no use; then nothing of it is left. Errors: the sandbox could not be recorded as running; its copy is gone with that.
 */
export async function thaw(context: Context, entry: Entry, before: SandboxRecord, timeoutMs: number): Promise<boolean> {
  const startedAtMs = performance.now();
  const copy = context.ladder.takeCopy(entry.id);
  if (copy === undefined) return false;
  const { machine, slot } = copy;
  const incarnation = { machine, slot, guest: guestIn(slot, context) };
  const steps: LaunchSteps = {};
  const mark = marker(steps);
  try {
    await machine.resume();
    mark("thawed");
    await fault("copy.thawed", machine.id);
    await whileAlive(machine, incarnation.guest.init(identityOf(entry), before.initKey));
    mark("ready");
    await fault("copy.told", machine.id);
  } catch (error) {
    context.logger.warn("the kept copy of a paused sandbox is of no use; its checkpoint is restored", {
      sandboxId: entry.id,
      error,
    });
    // It may be awake: what is started from the checkpoint must not meet it.
    await context.background.run(`ending the kept copy of ${entry.id}`, () =>
      takeDown(context, entry, incarnation, context.routes.revision),
    );
    return false;
  }
  entry.update({}, { machineId: before.machineId, slotIndex: slot.index });
  await goLive(context, entry, incarnation, { timeoutMs, startedAtMs, steps, from: "its kept copy" });
  return true;
}
