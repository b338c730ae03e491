import { mkdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { MIB } from "#domain";
import { startTicks } from "#lib/proc";
import type { ProcessWatcher } from "#lib/run";
import { bringBack } from "#lib/swapped";
import { together } from "#lib/together";
import type { CgroupStats } from "../cgroup/index.ts";
import {
  CheckpointError,
  type CheckpointOptions,
  type CheckpointReport,
  type MachineExit,
  type MachineSpec,
} from "../driver.ts";
import { ProcessMachine } from "../process-machine.ts";
import { Bundle } from "./bundle.ts";
import { ControlSocket } from "./control.ts";
import { goferOf, type MachineParts, removeMachine } from "./leftovers.ts";
import { protectAgent } from "./oom.ts";
import { type SentrySave, stateWritten } from "./sentry-save.ts";

/** What a machine is worked on with, beside its parts. */
export interface MachineTools {
  readonly watcher: ProcessWatcher;
  readonly sentrySave: SentrySave;
}

const PROTECT_TRIES = 40;
/** A gofer that keeps many files open for its guest needs more, and gets the rest when it does. */
const GOFER_BACK_BYTES = 16 * MIB;

/** A sandbox that runs. Calls on one machine come one after another, but `stop`, and what may go on beside them by its contract. */
export class GvisorMachine extends ProcessMachine {
  readonly #parts: MachineParts;
  readonly #sentrySave: SentrySave;
  readonly #bundle: Bundle;
  readonly #control: ControlSocket;
  readonly #ended = new AbortController();
  readonly #offered: Parameters<typeof protectAgent>[2];
  readonly #protected: Promise<void>;
  #gofer: { readonly pid: number; readonly ticks: bigint } | undefined;

  /** `paused`: whether the sandbox is paused now. Preconditions: `pid` is its process, which has been started. */
  constructor(
    parts: MachineParts,
    { watcher, sentrySave }: MachineTools,
    { id, agentDir, resources }: MachineSpec,
    pid: number,
    paused: boolean,
  ) {
    const bundle = new Bundle(parts.machinesDir, id);
    const { memoryBytes: memoryLimitBytes } = resources;
    super({ id, pid, version: bundle.readVersion(), cgroup: id, paused, memoryLimitBytes }, parts.cgroups, watcher);
    this.#offered = { agentPath: join(agentDir, "envd"), limitBytes: memoryLimitBytes };
    this.#parts = parts;
    this.#sentrySave = sentrySave;
    this.#bundle = bundle;
    this.#control = new ControlSocket(parts.runsc.socket(id));
    this.#protected = this.#protect();
    // Where its gofer cannot be looked for, as on a host short of descriptors, it is not watched.
    this.#endWithGofer(watcher).catch(() => {});
  }

  async checkpoint(dir: string, options: CheckpointOptions): Promise<CheckpointReport> {
    const wasPaused = this.paused;
    try {
      // Paused, nothing happens between what is written and the end.
      if (!options.keepRunning) await this.pause();
      await mkdir(dir, { mode: 0o700 });
      await this.#write(dir, options);
    } catch (cause) {
      if (!wasPaused) await this.resume().catch(() => {});
      const runs = await this.#answers();
      throw new CheckpointError(`cannot write a checkpoint of machine ${this.id} to ${dir}`, runs, { cause });
    }
    if (!options.keepRunning) await this.stop();
    return {};
  }

  /** Sandbox and gofer collect their garbage every two minutes, and touch all of their heaps with that. */
  override async bringBackRuntime(): Promise<void> {
    await together([this.#control.collectGarbage(), this.#bringBackGofer()]);
  }

  async #bringBackGofer(): Promise<void> {
    const gofer = this.#gofer;
    if (gofer === undefined || startTicks(gofer.pid) !== gofer.ticks) return;
    await bringBack(gofer.pid, { mostBytes: GOFER_BACK_BYTES, signal: this.#ended.signal });
  }

  /** Ends what this object does in the background; the machine goes on. */
  async close(): Promise<void> {
    this.#ended.abort();
    await this.#protected;
  }

  protected pauseNow(): Promise<void> {
    return this.#control.pause();
  }

  protected resumeNow(): Promise<void> {
    return this.#control.resume();
  }

  protected async remove(): Promise<void> {
    await this.close();
    await removeMachine(this.#parts, this.id, "cgroup");
  }

  protected describeEnd(stats: CgroupStats | undefined): Omit<MachineExit, "atMs"> {
    this.#ended.abort();
    const said = this.#bundle.logTail();
    const { oomKills, pidsLimitHits } = stats ?? { oomKills: 0, pidsLimitHits: 0 };
    if (oomKills > 0) {
      return { reason: "out-of-memory", detail: `${oomKills} processes were ended for the memory limit` };
    }
    const why = pidsLimitHits > 0 ? "the limit of processes was reached" : undefined;
    const detail = [why, said].filter((part) => part !== undefined).join(": ");
    return { reason: "crashed", ...(detail !== "" && { detail }) };
  }

  async #write(dir: string, options: CheckpointOptions): Promise<void> {
    try {
      await this.#sentrySave.save(this.#parts.runsc.socket(this.id), dir, options);
      // One whose first process ends just then is captured without it.
      if (!(await this.#answers())) throw new Error("its first process ended meanwhile");
    } catch (error) {
      // Until then a sandbox that ran cannot be told to go on, nor to stand still.
      await stateWritten(this.pid);
      await rm(dir, { recursive: true, force: true });
      throw error;
    }
  }

  async #answers(): Promise<boolean> {
    return !this.isStopping && (await this.#control.isRunning(this.id).catch(() => false));
  }

  /**
   * A sandbox ends with its gofer, which serves its files. One that stands still notices when it is let go on, and whoever took it for
   * good has given up what it could have been restored from by then: so it is ended at once.
   */
  async #endWithGofer(watcher: ProcessWatcher): Promise<void> {
    const ticks = startTicks(this.pid);
    const gofer = goferOf(this.id, this.#parts);
    const goferTicks = gofer === undefined ? undefined : startTicks(gofer);
    if (gofer !== undefined && goferTicks !== undefined) {
      this.#gofer = { pid: gofer, ticks: goferTicks };
      await watcher.exited(gofer, goferTicks);
    }
    if (this.#ended.signal.aborted || this.isStopping) return;
    if (ticks === undefined || startTicks(this.pid) !== ticks) return;
    try {
      process.kill(this.pid, "SIGKILL");
    } catch {
      // It ended by itself.
    }
  }

  /** Until the agent's own process has been seen; it may be made a little after the start has returned. */
  async #protect(): Promise<void> {
    for (let tries = 0; tries < PROTECT_TRIES && !this.#ended.signal.aborted; tries += 1) {
      if (protectAgent(this.#parts.cgroups.processes(this.id), this.pid, this.#offered)) return;
      await sleep(5 * (tries + 1), undefined, { signal: this.#ended.signal }).catch(() => {});
    }
  }
}
