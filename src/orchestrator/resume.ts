import { AenvError, type Sandbox } from "#domain";
import { readCheckpoint, removeCheckpoint, requireRestorable, stateDir } from "./checkpoints.ts";
import type { Context } from "./context.ts";
import type { Entry } from "./entry.ts";
import { machineIdOf } from "./record.ts";
import { bringUp } from "./run.ts";

/** Restores a paused sandbox as its next generation. On error it is paused as before, its state untouched. */
export async function resume(context: Context, entry: Entry, timeoutMs?: number): Promise<Sandbox> {
  const before = entry.record;
  const { checkpointOf } = before;
  if (checkpointOf === undefined) throw new AenvError("internal", `paused sandbox ${entry.id} has no checkpoint`);
  const dir = context.paths.checkpoint(checkpointOf);
  const generation = before.sandbox.generation + 1;
  entry.update({ state: "resuming", generation }, { machineId: machineIdOf(entry.id, generation) });
  try {
    const manifest = await readCheckpoint(dir);
    if (manifest === undefined) {
      throw new AenvError("internal", `the saved state of sandbox "${entry.id}" is damaged`, {
        hint: `look into ${dir} on the server, or delete the sandbox`,
      });
    }
    requireRestorable(context.driver, manifest);
    await context.journal.save(entry.record);
    const source = { dir: stateDir(dir), initKey: before.initKey };
    await bringUp(context, entry, source, timeoutMs ?? before.sandbox.spec.timeoutMs);
  } catch (error) {
    // The failed generation stays counted: its machine id is never used again.
    const { slotIndex: _, ...rest } = entry.record;
    entry.record = { ...rest, sandbox: { ...before.sandbox, generation } };
    await save(context, entry);
    throw error;
  }
  // Only now is the old state no longer needed: the record says running, and a crash from here on finds the machine.
  const { checkpointOf: _, ...record } = entry.record;
  entry.record = record;
  await save(context, entry);
  void context.background.run(`removing the resumed checkpoint of ${entry.id}`, () => removeCheckpoint(dir));
  return entry.sandbox;
}

/** Where the record on disk being older would be no lie: it leads to the same state after a crash. */
async function save(context: Context, entry: Entry): Promise<void> {
  try {
    await context.journal.save(entry.record);
  } catch (error) {
    context.logger.error("recording the outcome of a resume failed", { sandboxId: entry.id, error });
  }
}
