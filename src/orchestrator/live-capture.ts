import { AenvError, type SandboxState, sandboxNotFound } from "#domain";
import { CheckpointError } from "#driver";
import { captureFailed, requireRestorable } from "./checkpoints.ts";
import type { Context } from "./context.ts";
import type { Entry, Incarnation } from "./entry.ts";
import { forget } from "./kill.ts";

/** A capture that its sandbox goes on after: its state meanwhile, and what messages say of it. */
export interface LiveCapture {
  readonly state: Extract<SandboxState, "forking" | "snapshotting">;
  readonly done: "forked" | "captured";
}

/**
 * The operation of a running sandbox that is captured by `write` and goes on, reachable all the time. What `write` throws
 * leaves it running, unless its machine has ended: then it is gone. Errors: conflict (this server could not restore the
 * capture), not-found (it is gone), unavailable.
 */
export async function captureLive<T>(
  context: Context,
  entry: Entry,
  { state, done }: LiveCapture,
  write: (incarnation: Incarnation) => Promise<T>,
): Promise<T> {
  const { incarnation } = entry;
  if (incarnation === undefined) throw new AenvError("internal", `running sandbox ${entry.id} has no machine`);
  const { driver, logger } = context;
  const { version } = incarnation.machine;
  requireRestorable(driver, { driver: driver.name, driverVersion: version, arch: process.arch });
  entry.update({ state });
  try {
    return await write(incarnation);
  } catch (error) {
    if (error instanceof CheckpointError && !error.machineRuns) {
      logger.error(`sandbox lost: its machine ended while being ${done}`, { sandboxId: entry.id, error });
      await forget(context, entry);
      throw sandboxNotFound(entry.id);
    }
    throw captureFailed(error, `Sandbox "${entry.id}" could not be ${done} and goes on running`);
  } finally {
    if (entry.sandbox.state === state) entry.update({ state: "running" });
  }
}
