import { readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { errorKind } from "#domain";
import type { Machine, MachineId } from "#driver";
import { fault } from "#lib/fault";
import { Semaphore } from "#lib/mutex";
import type { HeldSlot, Slot } from "#network";
import { removeUnusedAgents } from "./agents.ts";
import { hasCheckpoint, readCheckpoint, removeCheckpoint } from "./checkpoints.ts";
import { type Context, IMPORT_LEASE, sandboxLease } from "./context.ts";
import { Entry } from "./entry.ts";
import { guestIn, machineSpec, makeNodeDirs } from "./launch.ts";
import { pausedRecord } from "./pause.ts";
import { checkpointIdOf, type SandboxRecord, withoutCheckpoint } from "./record.ts";
import { identityOf, routeOf, watch } from "./run.ts";

const ENDED_AT_ONCE = 8;
/** One that does not wake because it has ended is known to have by then. */
const ENDS_MS = 2_000;

/** What recovering one sandbox works with. */
interface Found {
  readonly record: SandboxRecord;
  readonly entry: Entry;
  /** Of its running incarnation; undefined: it had none, or its network is gone. */
  readonly slot: Slot | undefined;
  /** Machines of which anything is on this host. */
  readonly machines: Set<MachineId>;
}

/**
 * Takes up what an earlier server left. Order matters: slots first (machines live in them), then each record is brought to
 * the state before or after its interrupted operation, then everything that no record knows is removed. A sandbox that
 * cannot be taken up is left as it is, for the next start, and keeps nobody from the others. Errors: unavailable, when a
 * part of the node is.
 */
export async function recover(context: Context): Promise<void> {
  await makeNodeDirs(context.paths);
  const records = await context.journal.load();
  const slots = new Map((await context.slots.recover(heldSlots(records))).map((slot) => [slot.index, slot]));
  await fault("recover.slots");
  const machines = new Set(await context.driver.leftovers());
  const outcomes = await Promise.allSettled(
    records.map(async (record) => {
      const slot = record.slotIndex === undefined ? undefined : slots.get(record.slotIndex);
      await recoverOne(context, { record, entry: new Entry(record), slot, machines });
      await fault("recover.sandbox", record.machineId);
    }),
  );
  const untouched = outcomes.flatMap((outcome, at) => {
    const record = records[at];
    if (outcome.status === "fulfilled" || record === undefined) return [];
    if (errorKind(outcome.reason) === "unavailable") throw outcome.reason;
    const sandboxId = record.sandbox.id;
    context.logger.error("sandbox not taken up; the next start tries again", { sandboxId, error: outcome.reason });
    return [record];
  });
  await fault("recover.sandboxes");
  await removeStrangers(context, machines, untouched);
  await fault("recover.done");
  const states = context.entries.all().map((entry) => entry.sandbox.state);
  const running = states.filter((state) => state === "running").length;
  context.logger.info("recovered", {
    count: states.length,
    reason: `${running} running, ${states.length - running} paused`,
  });
}

function heldSlots(records: readonly SandboxRecord[]): HeldSlot[] {
  return records.flatMap(({ slotIndex, sandbox }) =>
    slotIndex === undefined ? [] : [{ index: slotIndex, policy: sandbox.spec.network }],
  );
}

async function recoverOne(context: Context, found: Found): Promise<void> {
  const { entry } = found;
  switch (entry.sandbox.state) {
    case "running":
    case "forking":
    case "freezing":
    case "frozen":
    case "thawing":
    case "snapshotting":
      return await goOn(context, found, await adopt(context, found));
    case "pausing":
      return await finishOrUndoPause(context, found);
    case "paused":
      return await stayPaused(context, found);
    case "resuming":
      // Nobody was told that it runs: back to the state it was resumed from.
      entry.update({ state: "paused" });
      return await stayPaused(context, found);
    case "creating":
    case "killing":
      return await drop(context, found);
  }
}

/** A sandbox that ran goes on running, unless its machine is gone. */
async function goOn(context: Context, found: Found, machine: Machine | undefined): Promise<void> {
  const { entry, slot } = found;
  const { checkpointOf } = entry.record;
  if (machine === undefined || slot === undefined) {
    if (checkpointOf !== undefined && (await readCheckpoint(context.paths.checkpoint(checkpointOf))) !== undefined) {
      // It died right after its resume, whose checkpoint is still there.
      entry.update({ state: "paused", endAtMs: Date.now() });
      return await stayPaused(context, found);
    }
    context.logger.error("sandbox lost: its machine is gone (the host restarted, or the machine crashed)", {
      sandboxId: entry.id,
      generation: entry.sandbox.generation,
    });
    return await drop(context, found);
  }
  if (!(await wakes(machine))) return await goOn(context, found, undefined);
  if (entry.sandbox.state !== "running") entry.update({ state: "running" });
  if (checkpointOf !== undefined || entry.record.capture !== undefined) entry.record = withoutCheckpoint(entry.record);
  entry.incarnation = { machine, slot, guest: guestIn(slot, context) };
  if (entry.record !== found.record) await context.journal.save(entry.record);
  context.entries.add(entry);
  context.routes.set(routeOf(entry));
  watch(context, entry, entry.incarnation);
  if (checkpointOf !== undefined) await removeCheckpoint(context.paths.checkpoint(checkpointOf));
}

/** Lets a machine go on where a pause was cut short, or it stood still. False: it ended in this moment. */
async function wakes(machine: Machine): Promise<boolean> {
  try {
    await machine.resume();
    return true;
  } catch (error) {
    const hasEnded = await Promise.race([machine.exited.then(() => true), sleep(ENDS_MS, false, { ref: false })]);
    if (hasEnded) return false;
    throw error;
  }
}

async function finishOrUndoPause(context: Context, found: Found): Promise<void> {
  const { entry, slot } = found;
  const dir = context.paths.checkpoint(checkpointIdOf(entry.record));
  const machine = await adopt(context, found);
  if (machine !== undefined && slot !== undefined) {
    await removeCheckpoint(dir);
    return await goOn(context, found, machine);
  }
  if ((await readCheckpoint(dir)) === undefined) return await goOn(context, found, undefined);
  await context.store.sync([dir]);
  entry.record = pausedRecord(entry.record, Date.now());
  await stayPaused(context, found);
}

async function stayPaused(context: Context, found: Found): Promise<void> {
  const { entry } = found;
  const { slotIndex, checkpointOf } = entry.record;
  if (checkpointOf === undefined || !(await hasCheckpoint(context.paths.checkpoint(checkpointOf)))) {
    // Removed after its resume, which the end of the host has made unheard of.
    context.logger.error("sandbox lost: it ran when the host ended", { sandboxId: entry.id });
    return await drop(context, found);
  }
  await removeMachine(context, found);
  if (slotIndex !== undefined) {
    const { slotIndex: _, ...record } = entry.record;
    entry.record = record;
  }
  if (entry.record !== found.record) await context.journal.save(entry.record, { durable: true });
  context.entries.add(entry);
  context.routes.set(routeOf(entry));
}

async function drop(context: Context, found: Found): Promise<void> {
  const { entry } = found;
  await removeMachine(context, found);
  await context.store.release(sandboxLease(entry.id));
  const { checkpointOf } = entry.record;
  if (checkpointOf !== undefined) await removeCheckpoint(context.paths.checkpoint(checkpointOf));
  await context.journal.remove(entry.id);
}

/** Ends what is left of the recorded incarnation. A running edge may still send its traffic to the slot, until it has taken
 *  in the new table. */
async function removeMachine(context: Context, { entry, slot, machines }: Found): Promise<void> {
  const { machineId } = entry.record;
  if (machines.has(machineId)) await context.driver.destroy(machineId);
  machines.delete(machineId);
  if (slot === undefined) return;
  void context.background.run(`giving back slot ${slot.index}`, async () => {
    await context.routes.settled(context.routes.snapshot().revision);
    await context.slots.release(slot);
  });
}

async function adopt(context: Context, { entry, slot, machines }: Found): Promise<Machine | undefined> {
  const { machineId, agentDigest, imageDigest } = entry.record;
  if (slot === undefined || !machines.has(machineId)) return undefined;
  const plan = { machineId, agentDigest, resources: entry.sandbox.spec.resources, identity: identityOf(entry) };
  const image = await context.store.mount(imageDigest, sandboxLease(entry.id));
  return context.driver.adopt(machineSpec(context.paths, plan, slot, image));
}

/** Machines, checkpoints and leases that no record knows. */
async function removeStrangers(
  context: Context,
  machines: ReadonlySet<MachineId>,
  untouched: readonly SandboxRecord[],
): Promise<void> {
  const entries = context.entries.all();
  const living = [...entries.filter((entry) => entry.incarnation).map((entry) => entry.record), ...untouched];
  const running = new Set(living.map((record) => record.machineId));
  const strangers = [...machines].filter((id) => !running.has(id));
  // There may be many: all that stood ready when the last server was killed.
  const width = new Semaphore(ENDED_AT_ONCE);
  const destroy = (id: MachineId): Promise<void> =>
    context.driver.destroy(id).catch((error: unknown) => {
      context.logger.error("leftovers of a machine stay until the next start", { reason: id, error });
    });
  await Promise.all(strangers.map((id) => width.run(() => destroy(id))));

  await fault("recover.machines");
  const records = [...entries.map((entry) => entry.record), ...untouched];
  // What was left untouched may be in the middle of a pause.
  const checkpoints = new Set(records.flatMap((record) => record.checkpointOf ?? []));
  for (const record of untouched) checkpoints.add(checkpointIdOf(record));
  for (const name of await readdir(context.paths.checkpoints)) {
    if (!checkpoints.has(name)) await rm(join(context.paths.checkpoints, name), { recursive: true, force: true });
  }
  const leases = new Set(records.map((record) => sandboxLease(record.sandbox.id)));
  for (const lease of await context.store.leases()) {
    const isDead = lease.startsWith(sandboxLease("")) ? !leases.has(lease) : lease.startsWith(IMPORT_LEASE);
    if (isDead) await context.store.release(lease);
  }
}

/** Removes agents that neither a sandbox nor a snapshot was made with. */
export async function removeOldAgents(context: Context, inSnapshots: Iterable<string>): Promise<void> {
  const used = new Set([context.agentDigest, ...inSnapshots]);
  for (const { agentDigest } of await context.journal.load()) used.add(agentDigest);
  await removeUnusedAgents(context.paths.agents, used);
}
