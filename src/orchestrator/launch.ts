import { mkdir } from "node:fs/promises";
import { AenvError, errorKind, type NetworkPolicy, type Resources } from "#domain";
import type { Driver, Machine, MachineImage, MachineSpec } from "#driver";
import { Guest, type GuestIdentity } from "#guest";
import { Cleanup } from "#lib/cleanup";
import { fault } from "#lib/fault";
import type { Semaphore } from "#lib/mutex";
import type { Slot, Slots } from "#network";
import type { Store } from "#store";
import type { Departures } from "./departures.ts";
import type { Incarnation } from "./entry.ts";
import { onEnd } from "./machine-end.ts";
import type { NodePaths } from "./paths.ts";
import type { Routes } from "./routes.ts";

export interface LaunchDeps {
  readonly driver: Driver;
  readonly slots: Slots;
  readonly store: Store;
  readonly paths: NodePaths;
  readonly routes: Routes;
  /** Restores use the processor most of the time they take: many more at once than there are cores only makes each slower. */
  readonly admission: Semaphore;
  /** How long a machine's agent may take to answer. */
  readonly readyTimeoutMs: number;
  readonly departures: Departures;
  /** Gives a slot back that could be missed. False: there is none. */
  readonly makeRoom: () => Promise<boolean>;
}

/** What is to run. */
export interface StartPlan {
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
  /** A folder of the driver's with the disk to boot with; absent: an empty one. */
  readonly diskFrom?: string;
  readonly identity: { readonly hostname: string };
  /** Told the slot as soon as there is one, so that it can be recorded before anything runs in it. */
  readonly onSlot: (slot: Slot) => void;
  /** Nobody waits for it: whoever does is started first. */
  readonly isAhead?: boolean;
  /** The agent need not answer. */
  readonly withoutAgent?: boolean;
}

/** What is to run, and as whom. */
export interface LaunchPlan extends StartPlan {
  readonly identity: GuestIdentity;
  /** What the captured agent asks for; absent when it is booted. */
  readonly currentInitKey?: string;
}

/** The agent runs its hook within an init, for so long at most. */
const HOOK_MS = 5_000;

export function guestIn({ hostAddress }: Slot, { readyTimeoutMs }: Pick<LaunchDeps, "readyTimeoutMs">): Guest {
  return new Guest(hostAddress, readyTimeoutMs + HOOK_MS);
}

/** Step name → ms since the start of the launch. */
export type LaunchSteps = Record<string, number>;

/** Notes when a step is over, counted from now. */
export function marker(steps: LaunchSteps): (step: string) => void {
  const startedAtMs = performance.now();
  return (step) => {
    steps[step] = Math.round((performance.now() - startedAtMs) * 10) / 10;
  };
}

/** Starts a machine and gives its agent an identity. Returns when the agent has taken it. Errors as those of `start`. */
export function launch(deps: LaunchDeps, plan: LaunchPlan, steps: LaunchSteps): Promise<Incarnation> {
  return start(deps, plan, steps, ({ machine, guest }) =>
    whileAlive(machine, guest.init(plan.identity, plan.currentInitKey)),
  );
}

/**
 * The one way a machine comes to life, whatever from: slot and image in parallel, then the driver, then its agent, and last
 * `finish`. On error everything is undone, the image's lease excepted (its holder ends it: a paused sandbox that fails to
 * resume still needs it).
 */
export async function start(
  deps: LaunchDeps,
  plan: StartPlan,
  steps: LaunchSteps,
  finish: (incarnation: Incarnation) => Promise<void>,
): Promise<Incarnation> {
  const mark = marker(steps);
  await using undo = new Cleanup();
  const [slot, image] = await prepare(deps, plan, undo);
  mark("prepared");
  const run = async (): Promise<Incarnation> => {
    mark("admitted");
    await fault("launch.prepared", plan.machineId);
    const spec = machineSpec(deps.paths, plan, slot, image);
    const machine = await startMachine(deps.driver, spec, plan);
    undo.add(() => machine.stop());
    mark("started");
    await fault("launch.started", plan.machineId);
    const guest = guestIn(slot, deps);
    undo.add(() => guest.close());
    if (!plan.withoutAgent) await answering(machine, guest, deps.readyTimeoutMs);
    mark("answering");
    await fault("launch.answering", plan.machineId);
    return { machine, slot, guest };
  };
  const incarnation = await deps.admission.run(run, { isPatient: plan.isAhead === true });
  // Nobody waits for a turn while a sandbox runs a program of its own.
  await finish(incarnation);
  mark("ready");
  await fault("launch.ready", plan.machineId);
  undo.keep();
  return incarnation;
}

async function prepare(deps: LaunchDeps, plan: StartPlan, undo: Cleanup): Promise<[Slot, MachineImage]> {
  const slotReady = acquireSlot(deps, plan, undo);
  const imageReady = deps.store.mount(plan.imageDigest, plan.leaseId);
  // Both settle before either failure is passed on: what is still being made could not be undone.
  await Promise.allSettled([slotReady, imageReady]);
  const image = { ...(await imageReady), ...(plan.imageInit !== undefined && { init: plan.imageInit }) };
  return [await slotReady, image];
}

async function acquireSlot(deps: LaunchDeps, plan: StartPlan, undo: Cleanup): Promise<Slot> {
  // An edge that was here before this server may know routes by addresses that are free now, until it has taken in ours.
  await deps.routes.settled(0);
  const slot = await slotFor(deps, plan.network);
  undo.add(() => deps.slots.release(slot));
  plan.onSlot(slot);
  return slot;
}

async function slotFor({ slots, departures, makeRoom }: LaunchDeps, policy: NetworkPolicy): Promise<Slot> {
  for (;;) {
    try {
      return await slots.acquire(policy);
    } catch (error) {
      if (errorKind(error) !== "exhausted") throw error;
      if (!(await departures.next()) && !(await makeRoom())) throw error;
    }
  }
}

export function machineSpec(
  paths: NodePaths,
  plan: Pick<StartPlan, "machineId" | "agentDigest" | "resources" | "identity">,
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

function startMachine(driver: Driver, spec: MachineSpec, { restoreFrom, diskFrom }: StartPlan): Promise<Machine> {
  if (restoreFrom !== undefined) return driver.restore(spec, restoreFrom);
  return driver.boot(spec, diskFrom === undefined ? {} : { diskFrom });
}

/** Waits for the agent, but no longer than the machine lives. */
async function answering(machine: Machine, guest: Guest, timeoutMs: number): Promise<void> {
  const stop = new AbortController();
  try {
    await whileAlive(machine, guest.waitReady(timeoutMs, stop.signal));
  } finally {
    stop.abort();
  }
}

/** The outcome of `work`, unless the machine ends before. Errors: unavailable. */
export async function whileAlive<T>(machine: Machine, work: Promise<T>): Promise<T> {
  const died = Promise.withResolvers<never>();
  using _ = onEnd(machine, (exit) => {
    died.reject(new AenvError("unavailable", `the sandbox ended while starting: ${exit.detail ?? exit.reason}`));
  });
  try {
    return await Promise.race([work, died.promise]);
  } finally {
    work.catch(() => {});
  }
}

export async function makeNodeDirs(paths: NodePaths): Promise<void> {
  for (const dir of [paths.agents, paths.snapshots, paths.checkpoints]) {
    await mkdir(dir, { recursive: true, mode: 0o700 });
  }
}
