import { type NetworkPolicy, newSandboxId, type SandboxId, type Snapshot } from "#domain";
import type { GuestIdentity } from "#guest";
import { stateDir } from "../checkpoints.ts";
import { sandboxLease } from "../context.ts";
import type { Incarnation } from "../entry.ts";
import { type LaunchDeps, type LaunchSteps, marker, start, whileAlive } from "../launch.ts";
import { machineIdOf } from "../record.ts";

/**
 * A machine restored ahead, for a sandbox that is yet to be asked for: its agent answers and knows nobody, and it stands still.
 * It has the id of that sandbox already, because host name and machine are named by it.
 */
export interface ReadyClone {
  readonly sandboxId: SandboxId;
  readonly snapshot: Snapshot;
  readonly network: NetworkPolicy;
  /** Its guest keeps the connection by which it was heard first. */
  readonly incarnation: Incarnation;
  readonly bytes: number;
}

/**
 * Makes one, after all starts that somebody waits for. On error nothing is left. `network`: of the sandbox to come, because what was
 * captured runs until it stands still, and keeps the connections it has made by then.
 */
export async function makeClone(deps: LaunchDeps, snapshot: Snapshot, network: NetworkPolicy): Promise<ReadyClone> {
  const sandboxId = newSandboxId();
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
        identity: { hostname: sandboxId },
        onSlot: () => {},
        isAhead: true,
      },
      {},
      async ({ machine }) => {
        // Awake it would take 2 % of a processor for nothing.
        await machine.pause();
        ({ memoryBytes: bytes } = await machine.stats());
      },
    );
    return { sandboxId, snapshot, network, incarnation, bytes };
  } catch (error) {
    await deps.store.release(sandboxLease(sandboxId));
    throw error;
  }
}

/** Makes a clone the sandbox that was asked for. On error it is as good as dead: its owner ends it. */
export async function wakeClone(
  { incarnation, snapshot }: ReadyClone,
  identity: GuestIdentity,
  steps: LaunchSteps,
): Promise<void> {
  const { machine, guest } = incarnation;
  const mark = marker(steps);
  await machine.resume();
  mark("thawed");
  await whileAlive(machine, guest.init(identity, snapshot.initKey));
  mark("ready");
}

/** Ends a clone that nobody was routed to. Repeatable. */
export async function endClone(deps: LaunchDeps, { sandboxId, incarnation }: ReadyClone): Promise<void> {
  incarnation.guest.close();
  await incarnation.machine.stop();
  await deps.slots.release(incarnation.slot);
  await deps.store.release(sandboxLease(sandboxId));
}
