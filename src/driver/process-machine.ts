import { AenvError } from "#domain";
import { isDiskFull } from "#lib/files";
import { startTicks } from "#lib/proc";
import { type ProcessWatcher, RunnerLostError } from "#lib/run";
import type { CgroupStats, Cgroups } from "./cgroup/index.ts";
import type {
  CheckpointOptions,
  CheckpointReport,
  Machine,
  MachineExit,
  MachineId,
  MachineStats,
  MemoryReading,
} from "./driver.ts";
import { MemoryLimit } from "./memory-limit.ts";

export interface MachineProcess {
  readonly id: MachineId;
  readonly pid: number;
  readonly version: string;
  /** The name of its cgroup. */
  readonly cgroup: string;
  /** Whether the machine is paused now. */
  readonly paused: boolean;
  /** Of its memory and what of it is in swap together. Absent: a kernel of its own keeps it. */
  readonly memoryLimitBytes?: number;
}

/** A machine that is a process on this host, in a cgroup of its own: what all such have in common. */
export abstract class ProcessMachine implements Machine {
  readonly id: MachineId;
  readonly pid: number;
  readonly version: string;
  readonly exited: Promise<MachineExit>;
  protected paused: boolean;
  readonly #cgroups: Cgroups;
  readonly #cgroup: string;
  readonly #memory: MemoryLimit | undefined;
  #stopping: Promise<void> | undefined;

  /** Preconditions: the process has been started. */
  protected constructor(
    { id, pid, version, cgroup, paused, memoryLimitBytes }: MachineProcess,
    cgroups: Cgroups,
    watcher: ProcessWatcher,
  ) {
    this.id = id;
    this.pid = pid;
    this.version = version;
    this.paused = paused;
    this.#cgroups = cgroups;
    this.#cgroup = cgroup;
    if (memoryLimitBytes !== undefined) this.#memory = new MemoryLimit(cgroups, cgroup, memoryLimitBytes);
    // A process that has gone already has no start time; whoever has its pid by then does not end with it.
    const ticks = startTicks(pid);
    const atMs =
      ticks === undefined ? Promise.resolve(Date.now()) : watcher.exited(pid, ticks).then((exit) => exit.atMs);
    this.exited = atMs.then((at) => this.#describeExit(at));
  }

  async pause(): Promise<void> {
    if (this.paused) return;
    await this.pauseNow();
    this.paused = true;
  }

  async resume(): Promise<void> {
    if (!this.paused) return;
    await this.resumeNow();
    this.paused = false;
  }

  stop(): Promise<void> {
    if (this.#stopping === undefined) {
      this.#kill();
      this.#stopping = this.remove().catch((error) => {
        this.#stopping = undefined;
        throw error;
      });
    }
    return this.#stopping;
  }

  async stats(): Promise<MachineStats> {
    const { memoryBytes, cpuUsec, pids, oomKills } = this.#cgroups.stats(this.#cgroup);
    return { memoryBytes, cpuUsec, pids, oomKills };
  }

  async reclaim(): Promise<void> {
    await this.#cgroups.reclaim(this.#cgroup);
    // What is in swap now counts against its limit.
    this.memory();
  }

  async bringBackRuntime(): Promise<void> {}

  abstract checkpoint(dir: string, options: CheckpointOptions): Promise<CheckpointReport>;

  memory(): MemoryReading | undefined {
    return this.#memory?.read();
  }

  protected get isStopping(): boolean {
    return this.#stopping !== undefined;
  }

  protected abstract pauseNow(): Promise<void>;
  protected abstract resumeNow(): Promise<void>;
  /** Ends the machine and removes all of it. */
  protected abstract remove(): Promise<void>;
  /** What became of a machine that nobody stopped. `stats`: undefined where its cgroup has gone already. */
  protected abstract describeEnd(stats: CgroupStats | undefined): Omit<MachineExit, "atMs">;

  /** What it holds takes the kernel tens of milliseconds to give back, and nobody has to wait for that. */
  #kill(): void {
    try {
      this.#cgroups.kill(this.#cgroup);
    } catch {
      // Removing it tries again, and says what is wrong.
    }
  }

  #describeExit(atMs: number): MachineExit {
    if (this.isStopping) return { atMs, reason: "stopped" };
    return { atMs, ...this.describeEnd(this.#lastStats()) };
  }

  #lastStats(): CgroupStats | undefined {
    try {
      return this.#cgroups.stats(this.#cgroup);
    } catch {
      return undefined;
    }
  }
}

/** Undoes a start that failed and returns the error that says so. `said`: the runtime's last words. */
export async function undoStart(
  id: MachineId,
  {
    cause,
    said,
    remove,
  }: { readonly cause: unknown; readonly said?: string | undefined; readonly remove: () => Promise<void> },
): Promise<AenvError> {
  const gone = await remove().then(
    () => undefined,
    (error: unknown) => error,
  );
  const causes = gone === undefined ? cause : new AggregateError([cause, gone], "nor could it be cleaned up");
  const { kind, message, hint } = startError(cause, { said: said ?? "", undone: gone === undefined });
  return new AenvError(kind, `machine ${id} did not start${message === "" ? "" : `: ${message}`}`, {
    cause: causes,
    ...(hint !== undefined && { hint }),
  });
}

/** Runtimes tell of a full disk in the kernel's words. A start is worth another try only when nothing of it is left. */
function startError(cause: unknown, { said, undone }: { readonly said: string; readonly undone: boolean }): AenvError {
  if (cause instanceof AenvError) return cause;
  if (cause instanceof RunnerLostError && undone) {
    return new AenvError("unavailable", "what starts it was restarted meanwhile", { hint: "try again" });
  }
  if (isDiskFull(cause) || /no space left on device|disk quota exceeded/i.test(said)) {
    return new AenvError("exhausted", "the server's disk is full", { hint: "free some space" });
  }
  return new AenvError("internal", said);
}
