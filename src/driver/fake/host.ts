import type { CommandRunner } from "#lib/run";
import type { MachineId, MachineSpec } from "../driver.ts";
import type { FakeMachine } from "./machine.ts";

/** Gives machines of the fake driver a real agent: a plain process on this host that nothing isolates. */
export interface FakeAgent {
  readonly envdPath: string;
  readonly runner: CommandRunner;
  /** `host:port` the machine's agent listens on. */
  readonly listenOn: (spec: MachineSpec) => string;
}

export type FakeOperation =
  | "boot"
  | "restore"
  | "adopt"
  | "pause"
  | "resume"
  | "checkpoint"
  | "reclaim"
  | "bringBackRuntime"
  | "stop"
  | "destroy";

/**
 * The host under fake drivers: it keeps the machines when a driver object goes, as a real one does, and it is where tests
 * script what goes wrong.
 */
export class FakeHost {
  /** Machines that run. */
  readonly running = new Map<MachineId, FakeMachine>();
  /** Ids of which something is left: running machines, and what `leave` says a crash has left. */
  readonly remains = new Set<MachineId>();
  /** What each of them holds, of which nothing has gone to swap; and what comes back of it by waking. */
  memoryBytes = 16 * 1024 * 1024;
  neededBytes = 8 * 1024 * 1024;
  /** The kernel gives up when it has taken so much at a time. */
  reclaimAtOnceBytes = Number.POSITIVE_INFINITY;
  /** Machines whose memory was taken, in order. */
  readonly reclaimed: MachineId[] = [];
  /** Machines of which what their runtime needs was brought back, in order. */
  readonly broughtBack: MachineId[] = [];
  readonly #failures = new Map<FakeOperation, Error[]>();

  /** What a machine holds in memory now. */
  heldBytes(id: MachineId): number {
    return this.running.get(id)?.heldBytes ?? 0;
  }

  /** The next call of this operation throws `error` instead of doing anything. Calls queue up. */
  failNext(operation: FakeOperation, error: Error): void {
    const queue = this.#failures.get(operation) ?? [];
    queue.push(error);
    this.#failures.set(operation, queue);
  }

  /** Leaves something of a machine that does not run, as a crashed start does. */
  leave(id: MachineId): void {
    this.remains.add(id);
  }

  /** Ends a machine as a crash or the kernel would. Preconditions: it runs. */
  async end(id: MachineId, reason: "crashed" | "out-of-memory", detail?: string): Promise<void> {
    const machine = this.running.get(id);
    if (machine === undefined) throw new Error(`no machine ${id} runs`);
    await machine.end({ atMs: Date.now(), reason, ...(detail !== undefined && { detail }) });
  }

  /** Throws what was scripted for this operation, once. */
  mayFail(operation: FakeOperation): void {
    const error = this.#failures.get(operation)?.shift();
    if (error !== undefined) throw error;
  }
}
