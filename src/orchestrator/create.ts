import { newToken, type Sandbox, type SandboxId, type SandboxSpec, type Snapshot, tokensFor } from "#domain";
import { fault } from "#lib/fault";
import type { Context } from "./context.ts";
import { Entry } from "./entry.ts";
import { forget } from "./kill.ts";
import type { ReadyClone } from "./ladder/clones.ts";
import type { LaunchSteps } from "./launch.ts";
import { machineIdOf } from "./record.ts";
import { bringUp, goLive, identityOf, type StateSource } from "./run.ts";

/** A sandbox that is about to be: what it is to become, and nothing of it made yet. */
export function newEntry(id: SandboxId, spec: SandboxSpec, snapshot: Snapshot): Entry {
  return new Entry({
    sandbox: {
      id,
      generation: 1,
      state: "creating",
      spec,
      snapshotId: snapshot.id,
      ...tokensFor(spec),
      envdVersion: snapshot.envdVersion,
      startedAtMs: Date.now(),
      endAtMs: Number.MAX_SAFE_INTEGER,
    },
    machineId: machineIdOf(id, 1),
    imageDigest: snapshot.imageDigest,
    agentDigest: snapshot.agentDigest,
    ...(snapshot.boot !== undefined && { boot: snapshot.boot }),
    initKey: newToken(),
  });
}

/** Creates the entry's sandbox (state `creating`) from a captured state. On error nothing of it is left. `from`: what that state
 *  is, for the log. */
export async function create(context: Context, entry: Entry, source: StateSource, from: string): Promise<Sandbox> {
  context.entries.add(entry);
  return await wholly(context, entry, async () => {
    await context.journal.save(entry.record);
    await fault("create.recorded", entry.record.machineId);
    await bringUp(context, entry, source, { timeoutMs: entry.sandbox.spec.timeoutMs, from });
  });
}

/** As `create`, from a ready clone with the entry's id. undefined: the clone is of no use, and nothing of the sandbox is left. */
export async function createFromClone(context: Context, entry: Entry, clone: ReadyClone): Promise<Sandbox | undefined> {
  const startedAtMs = performance.now();
  context.entries.add(entry);
  const { spec } = entry.sandbox;
  const steps: LaunchSteps = {};
  const incarnation = await context.ladder.wake(clone, identityOf(entry), steps);
  if (incarnation === undefined) {
    context.entries.remove(entry);
    return undefined;
  }
  // It is recorded only now: until then a crash leaves a clone, which is nobody's.
  entry.update({}, { slotIndex: incarnation.slot.index });
  const start = { timeoutMs: spec.timeoutMs, startedAtMs, steps, from: "a ready clone" };
  return await wholly(context, entry, () => goLive(context, entry, incarnation, start));
}

async function wholly(context: Context, entry: Entry, work: () => Promise<void>): Promise<Sandbox> {
  try {
    await work();
    return entry.sandbox;
  } catch (error) {
    // What cannot be removed now is doomed, and the reaper tries again.
    await forget(context, entry).catch((undoing: unknown) =>
      context.logger.error("a failed create could not be undone yet", { sandboxId: entry.id, error: undoing }),
    );
    throw error;
  }
}
