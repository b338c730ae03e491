import { mkdir } from "node:fs/promises";
import { AenvError, type NetworkPolicy, type Resources } from "#domain";
import type { Driver, Machine, MachineImage, MachineSpec } from "#driver";
import { Guest, type GuestIdentity } from "#guest";
import { Cleanup } from "#lib/cleanup";
import type { Semaphore } from "#lib/mutex";
import type { Slot, Slots } from "#network";
import type { Store } from "#store";
import type { Incarnation } from "./entry.ts";
import type { NodePaths } from "./paths.ts";
import type { Routes } from "./routes.ts";

export interface LaunchDeps {
  readonly driver: Driver;
  readonly slots: Slots;
  readonly store: Store;
  readonly paths: NodePaths;
  readonly routes: Routes;
  /** Restores use the processor all the time they take: more at once than there are cores only makes each slower. */
  readonly admission: Semaphore;
  /** How long a machine's agent may take to answer. */
  readonly readyTimeoutMs: number;
}

/** What is to run, and as whom. */
export interface LaunchPlan {
  readonly machineId: string;
  readonly imageDigest: string;
  /** Command line of the image's own init, where a machine is booted from an image that has one. */
  readonly imageInit?: readonly string[];
  readonly agentDigest: string;
  /** Holds the image while the incarnation, or a checkpoint of it, needs it. */
  readonly leaseId: string;
  readonly resources: Resources;
  readonly network: NetworkPolicy;
  /** A folder of the driver's to restore from; absent: the image is booted. */
  readonly restoreFrom?: string;
  readonly identity: GuestIdentity;
  /** What the captured agent asks for; absent when it is booted. */
  readonly currentInitKey?: string;
  /** Told the slot as soon as there is one, so that it can be recorded before anything runs in it. */
  readonly onSlot: (slot: Slot) => void;
}

/** Step name → ms since the start of the launch. */
export type LaunchSteps = Record<string, number>;

/**
 * The one way a machine comes to life, whatever from: slot and image in parallel, then the driver, then the agent's
 * identity. Returns when the agent has taken it. On error everything is undone, the image's lease excepted (its holder ends
 * it: a paused sandbox that fails to resume still needs it).
 */
export async function launch(deps: LaunchDeps, plan: LaunchPlan, steps: LaunchSteps): Promise<Incarnation> {
  const startedAtMs = performance.now();
  const mark = (step: string): void => {
    steps[step] = Math.round((performance.now() - startedAtMs) * 10) / 10;
  };
  await using undo = new Cleanup();
  const [slot, image] = await prepare(deps, plan, undo);
  mark("prepared");
  return await deps.admission.run(async () => {
    mark("admitted");
    const spec = machineSpec(deps.paths, plan, slot, image);
    const machine = await startMachine(deps.driver, spec, plan.restoreFrom);
    undo.add(() => machine.stop());
    mark("started");
    const guest = new Guest(slot.hostAddress);
    undo.add(() => guest.close());
    await answering(machine, guest, deps.readyTimeoutMs);
    mark("answering");
    await guest.init(plan.identity, plan.currentInitKey);
    mark("ready");
    undo.keep();
    return { machine, slot, guest };
  });
}

async function prepare(deps: LaunchDeps, plan: LaunchPlan, undo: Cleanup): Promise<[Slot, MachineImage]> {
  const slotReady = acquireSlot(deps, plan, undo);
  const imageReady = deps.store.mount(plan.imageDigest, plan.leaseId);
  // Both settle before either failure is passed on: what is still being made could not be undone.
  await Promise.allSettled([slotReady, imageReady]);
  const image = { ...(await imageReady), ...(plan.imageInit !== undefined && { init: plan.imageInit }) };
  return [await slotReady, image];
}

async function acquireSlot(deps: LaunchDeps, plan: LaunchPlan, undo: Cleanup): Promise<Slot> {
  // An edge that was here before this server may know routes by addresses that are free now, until it has taken in ours.
  await deps.routes.settled(0);
  const slot = await deps.slots.acquire(plan.network);
  undo.add(() => deps.slots.release(slot));
  plan.onSlot(slot);
  return slot;
}

export function machineSpec(
  paths: NodePaths,
  plan: Pick<LaunchPlan, "machineId" | "agentDigest" | "resources"> & {
    readonly identity: { readonly hostname: string };
  },
  slot: Slot,
  image: MachineImage,
): MachineSpec {
  return {
    id: plan.machineId,
    resources: plan.resources,
    hostname: plan.identity.hostname,
    image,
    agentDir: paths.agent(plan.agentDigest),
    network: slot,
  };
}

function startMachine(driver: Driver, spec: MachineSpec, restoreFrom: string | undefined): Promise<Machine> {
  return restoreFrom === undefined ? driver.boot(spec) : driver.restore(spec, restoreFrom);
}

/** Waits for the agent, but no longer than the machine lives. */
async function answering(machine: Machine, guest: Guest, timeoutMs: number): Promise<void> {
  const stop = new AbortController();
  const died = machine.exited.then((exit) => {
    throw new AenvError("unavailable", `the sandbox ended while starting: ${exit.detail ?? exit.reason}`);
  });
  try {
    await Promise.race([guest.waitReady(timeoutMs, stop.signal), died]);
  } finally {
    stop.abort();
    died.catch(() => {});
  }
}

export async function makeNodeDirs(paths: NodePaths): Promise<void> {
  for (const dir of [paths.agents, paths.snapshots, paths.checkpoints]) {
    await mkdir(dir, { recursive: true, mode: 0o700 });
  }
}
