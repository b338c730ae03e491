import { type NetworkPolicy, newSandboxId, newToken, type SandboxId, type SandboxSpec, type Snapshot } from "#domain";
import type { GuestIdentity } from "#guest";
import { fault } from "#lib/fault";
import { stateDir } from "../checkpoints.ts";
import { sandboxLease } from "../context.ts";
import type { Incarnation } from "../entry.ts";
import { type LaunchDeps, type LaunchSteps, marker, start, whileAlive } from "../launch.ts";
import { machineIdOf } from "../record.ts";

/**
 * A machine restored ahead, for a sandbox that is yet to be asked for: it has that sandbox's id and host name, its agent answers
 * nobody, and it stands still.
 */
export interface ReadyClone {
  readonly sandboxId: SandboxId;
  readonly snapshot: Snapshot;
  readonly network: NetworkPolicy;
  /** Its guest keeps the connection by which it was heard first. */
  readonly incarnation: Incarnation;
  /** What its agent asks for. */
  readonly initKey: string;
  readonly bytes: number;
}

/**
 * What a sandbox to come will probably be. Its network policy will be just that: what was captured runs until it stands still, and
 * keeps the connections it has made by then. By the rest its agent is prepared, and can be told otherwise later.
 */
export type CloneSpec = Pick<SandboxSpec, "network" | "templateId" | "defaultUser">;

/** Makes one, after all starts that somebody waits for. On error nothing is left. */
export async function makeClone(deps: LaunchDeps, snapshot: Snapshot, spec: CloneSpec): Promise<ReadyClone> {
  const { network, templateId, defaultUser } = spec;
  const sandboxId = newSandboxId();
  const identity = { sandboxId, templateId, hostname: sandboxId, defaultUser, initKey: newToken() };
  let bytes = 0;
  try {
    const incarnation = await start(
      deps,
      {
        machineId: machineIdOf(sandboxId, 1),
        imageDigest: snapshot.imageDigest,
        agentDigest: snapshot.agentDigest,
        leaseId: sandboxLease(sandboxId),
        resources: snapshot.resources,
        network,
        restoreFrom: stateDir(deps.paths.snapshot(snapshot.id)),
        identity,
        onSlot: () => {},
        isAhead: true,
      },
      {},
      async ({ machine, guest }) => {
        // A restored agent does everything slowly once: its pages come one by one.
        await whileAlive(machine, guest.prepare(identity, snapshot.initKey));
        // Awake it would take 2 % of a processor for nothing.
        await machine.pause();
        await fault("clone.frozen", machine.id);
        ({ memoryBytes: bytes } = await machine.stats());
      },
    );
    return { sandboxId, snapshot, network, incarnation, initKey: identity.initKey, bytes };
  } catch (error) {
    await deps.store.release(sandboxLease(sandboxId));
    throw error;
  }
}

/** Makes a clone the sandbox that was asked for. On error it is as good as dead: its owner ends it. */
export async function wakeClone(
  { incarnation, initKey }: ReadyClone,
  identity: GuestIdentity,
  steps: LaunchSteps,
): Promise<void> {
  const { machine, guest } = incarnation;
  const mark = marker(steps);
  await machine.resume();
  mark("thawed");
  await fault("clone.thawed", machine.id);
  await whileAlive(machine, guest.init(identity, initKey));
  mark("ready");
  await fault("clone.told", machine.id);
}

/** Ends a clone that nobody was routed to. Repeatable. */
export async function endClone(deps: LaunchDeps, { sandboxId, incarnation }: ReadyClone): Promise<void> {
  const { machine, slot, guest } = incarnation;
  guest.close();
  await machine.stop();
  await fault("clone.stopped", machine.id);
  await deps.slots.release(slot);
  await fault("clone.released", machine.id);
  await deps.store.release(sandboxLease(sandboxId));
}
