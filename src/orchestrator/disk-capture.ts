import { mkdtemp, rm } from "node:fs/promises";
import { join } from "node:path";
import { AenvError, type MachineCapture } from "#domain";
import type { Driver } from "#driver";
import { type CheckpointManifest, capture, captureFailed, stateDir } from "./checkpoints.ts";
import type { Context } from "./context.ts";
import type { Entry, Incarnation } from "./entry.ts";
import { takeDown } from "./kill.ts";
import { start } from "./launch.ts";
import { planOf, type StateSource } from "./run.ts";

/** The agent thaws its disk by itself after 10 s in which its machine runs. */
const FROZEN_AT_LEAST_MS = 8_000;

/** Errors: invalid, when the driver cannot keep this. */
export function requireCapture(driver: Driver, what: MachineCapture | undefined, field?: string): void {
  if (what !== "disk" || driver.capabilities.diskCapture !== undefined) return;
  throw new AenvError("invalid", `the driver of this server, ${driver.name}, cannot keep a sandbox's disk alone`, {
    hint: "pause it with its memory",
    ...(field !== undefined && { field }),
  });
}

/** Stops a machine at a moment at which what is to be captured is whole. */
export async function freeze(
  { driver }: Pick<Context, "driver">,
  entry: Entry,
  { machine, guest }: Incarnation,
  what: MachineCapture,
): Promise<void> {
  if (!isFlushed(driver, what)) return await machine.pause();
  // It may have been idle, and stand still.
  await machine.resume();
  await guest.freezeDisk(entry.record.initKey);
  const frozenAtMs = performance.now();
  await machine.pause();
  if (performance.now() - frozenAtMs < FROZEN_AT_LEAST_MS) return;
  throw new AenvError("unavailable", "the machine took so long to stop that its disk may have gone on");
}

/** Undoes `freeze`, as far as it came. */
export async function thaw(
  { driver }: Pick<Context, "driver">,
  entry: Entry,
  { machine, guest }: Incarnation,
  what: MachineCapture,
): Promise<void> {
  await machine.resume();
  if (isFlushed(driver, what)) await guest.thawDisk(entry.record.initKey);
}

/** Captures the disk of a machine that goes on afterwards, and stands still meanwhile. Throws what the driver throws. */
export async function captureDiskLive(
  context: Context,
  entry: Entry,
  incarnation: Incarnation,
  dir: string,
): Promise<CheckpointManifest> {
  let manifest: CheckpointManifest;
  try {
    manifest = await captureDisk(context, entry, incarnation, dir, { durable: true });
  } catch (error) {
    await thaw(context, entry, incarnation, "disk").catch((undoing: unknown) =>
      context.logger.error("thawing failed after a capture had failed", { sandboxId: entry.id, error: undoing }),
    );
    throw error;
  }
  await thaw(context, entry, incarnation, "disk");
  return manifest;
}

/** The machine stands still afterwards. */
async function captureDisk(
  context: Context,
  entry: Entry,
  incarnation: Incarnation,
  dir: string,
  options: { readonly durable: boolean },
): Promise<CheckpointManifest> {
  await freeze(context, entry, incarnation, "disk");
  return await capture(context.driver, incarnation.machine, dir, entry.record, { what: "disk", ...options });
}

/**
 * Gives `work` the disk of a sandbox whose memory was kept too. What is on the disk of such a checkpoint is not all that was
 * written: the rest is in the memory. So the machine is restored, cut off from the world, its disk captured, and ended. The entry
 * has a generation for it, and nobody is routed to it. Its agent is not needed, which may be why somebody reboots it, unless the
 * driver does.
 */
export async function withDiskOf<T>(
  context: Context,
  entry: Entry,
  source: StateSource,
  work: (disk: StateSource) => Promise<T>,
): Promise<T> {
  const dir = await mkdtemp(join(context.paths.checkpoints, `reboot-${entry.id}-`));
  try {
    await takeDisk(context, entry, source, dir);
    return await work({ dir: stateDir(dir) });
  } finally {
    void context.background.run(`removing what ${entry.id} was rebooted from`, () =>
      rm(dir, { recursive: true, force: true }),
    );
  }
}

async function takeDisk(context: Context, entry: Entry, source: StateSource, dir: string): Promise<void> {
  const withoutAgent = !isFlushed(context.driver, "disk");
  const plan = { ...planOf(entry, source), network: { internet: false }, withoutAgent };
  // It is told nothing: what a sandbox does when it hears that it is a copy is the booted one's to do.
  const incarnation = await start(context, plan, {}, async () => {});
  try {
    await captureDisk(context, entry, incarnation, dir, { durable: false });
  } catch (cause) {
    throw captureFailed(cause, `Sandbox "${entry.id}" could not be rebooted and stays paused`);
  } finally {
    await takeDown(context, entry, incarnation);
  }
}

function isFlushed(driver: Driver, what: MachineCapture): boolean {
  return what === "disk" && driver.capabilities.diskCapture === "flushed";
}
