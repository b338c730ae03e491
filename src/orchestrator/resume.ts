import { AenvError, type ResumeOptions, type Sandbox } from "#domain";
import { fault } from "#lib/fault";
import { readCheckpoint, removeCheckpoint, requireRestorable, stateDir } from "./checkpoints.ts";
import type { Context } from "./context.ts";
import { withDiskOf } from "./disk-capture.ts";
import type { Entry } from "./entry.ts";
import { thaw } from "./ladder/thaw.ts";
import { machineIdOf, type SandboxRecord, withoutCheckpoint } from "./record.ts";
import { bringUp, routeOf, type StateSource } from "./run.ts";

/** Starts a paused sandbox as its next generation: its kept copy, or else its checkpoint; boots it where its disk alone was kept, or
 *  is asked for. On error it is paused as before, its state untouched. */
export async function resume(
  context: Context,
  entry: Entry,
  timeoutMs?: number,
  { reboot = false }: ResumeOptions = {},
): Promise<Sandbox> {
  const before = entry.record;
  const { checkpointOf } = before;
  if (checkpointOf === undefined) throw new AenvError("internal", `paused sandbox ${entry.id} has no checkpoint`);
  const dir = context.paths.checkpoint(checkpointOf);
  const lifeMs = timeoutMs ?? before.sandbox.spec.timeoutMs;
  nextGeneration(entry);
  try {
    // Until a thaw is recorded the record says paused, which is as true.
    const isThawed = !reboot && (await thaw(context, entry, before, lifeMs));
    if (!isThawed) await start(context, entry, before, { dir, timeoutMs: lifeMs, reboot });
    context.ladder.resumed(isThawed ? "copy" : "checkpoint");
  } catch (error) {
    // The failed generation stays counted: its machine id is never used again.
    const { slotIndex: _, ...rest } = entry.record;
    entry.record = { ...rest, sandbox: { ...before.sandbox, generation: entry.sandbox.generation } };
    await save(context, entry);
    throw error;
  }
  // Only now is the old state no longer needed: the record says running, and a crash from here on finds the machine.
  entry.record = withoutCheckpoint(entry.record);
  // While it ran already its route still said that traffic does not wake it.
  if (before.capture === "disk") context.routes.set(routeOf(entry));
  await save(context, entry);
  await fault("resume.running", entry.record.machineId);
  void context.background.run(`removing the resumed checkpoint of ${entry.id}`, () => removeCheckpoint(dir));
  return entry.sandbox;
}

interface Start {
  readonly dir: string;
  readonly timeoutMs: number;
  readonly reboot: boolean;
}

async function start(
  context: Context,
  entry: Entry,
  before: SandboxRecord,
  { dir, timeoutMs, reboot }: Start,
): Promise<void> {
  const manifest = await readCheckpoint(dir);
  if (manifest === undefined) {
    throw new AenvError("internal", `the saved state of sandbox "${entry.id}" is damaged`, {
      hint: `look into ${dir} on the server, or delete the sandbox`,
    });
  }
  requireRestorable(context.driver, manifest);
  // What is started must not meet a copy of itself.
  await context.ladder.dropCopy(entry.id);
  await context.journal.save(entry.record);
  await fault("resume.recorded", entry.record.machineId);
  const source = { dir: stateDir(dir), ...(manifest.capture !== "disk" && { initKey: before.initKey }) };
  if (reboot && manifest.capture !== "disk") await rebootFrom(context, entry, source, timeoutMs);
  else await bringUp(context, entry, source, { timeoutMs, from: "its checkpoint" });
}

/** One generation to take the disk from, and one to boot with it. */
async function rebootFrom(context: Context, entry: Entry, source: StateSource, timeoutMs: number): Promise<void> {
  await withDiskOf(context, entry, source, async (disk) => {
    nextGeneration(entry);
    await context.journal.save(entry.record);
    await bringUp(context, entry, disk, { timeoutMs, from: "the disk of its checkpoint" });
  });
}

function nextGeneration(entry: Entry): void {
  const generation = entry.sandbox.generation + 1;
  const { slotIndex: _, ...record } = entry.record;
  entry.record = record;
  entry.update({ state: "resuming", generation }, { machineId: machineIdOf(entry.id, generation) });
}

/** Where the record on disk being older would be no lie: it leads to the same state after a crash. */
async function save(context: Context, entry: Entry): Promise<void> {
  try {
    await context.journal.save(entry.record);
  } catch (error) {
    context.logger.error("recording the outcome of a resume failed", { sandboxId: entry.id, error });
  }
}
