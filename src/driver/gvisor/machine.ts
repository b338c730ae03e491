import { mkdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { startTicks } from "#lib/proc";
import type { ProcessExit, ProcessWatcher } from "#lib/run";
import {
  CheckpointError,
  type CheckpointReport,
  type Machine,
  type MachineExit,
  type MachineId,
  type MachineSpec,
  type MachineStats,
  type MemoryReading,
} from "../driver.ts";
import { Bundle } from "./bundle.ts";
import { ControlSocket } from "./control.ts";
import { type MachineParts, removeMachine } from "./leftovers.ts";
import { protectAgent } from "./oom.ts";

const PROTECT_TRIES = 40;

/** A sandbox that runs. Calls on one machine come one after another, `stop` excepted. */
export class GvisorMachine implements Machine {
  readonly id: MachineId;
  readonly pid: number;
  readonly version: string;
  readonly exited: Promise<MachineExit>;
  readonly #parts: MachineParts;
  readonly #bundle: Bundle;
  readonly #control: ControlSocket;
  readonly #ended = new AbortController();
  readonly #agentPath: string;
  readonly #protected: Promise<void>;
  #paused: boolean;
  #stopping: Promise<void> | undefined;

  /** `paused`: whether the sandbox is paused now. Preconditions: `pid` is its process, which has been started. */
  constructor(
    parts: MachineParts,
    watcher: ProcessWatcher,
    { id, agentDir }: MachineSpec,
    pid: number,
    paused: boolean,
  ) {
    this.id = id;
    this.#agentPath = join(agentDir, "envd");
    this.pid = pid;
    this.#parts = parts;
    this.#bundle = new Bundle(parts.machinesDir, id);
    this.version = this.#bundle.readVersion();
    this.#control = new ControlSocket(parts.runsc.socket(id));
    this.#paused = paused;
    // A process that has gone already has no start time; whoever has its pid by then does not end with it.
    const ticks = startTicks(pid);
    const exit = ticks === undefined ? goneAlready() : watcher.exited(pid, ticks);
    this.exited = exit.then((ended) => this.#describe(ended));
    this.#protected = this.#protect();
  }

  async pause(): Promise<void> {
    if (this.#paused) return;
    await this.#control.pause();
    this.#paused = true;
  }

  async resume(): Promise<void> {
    if (!this.#paused) return;
    await this.#control.resume();
    this.#paused = false;
  }

  async checkpoint(dir: string, options: { readonly keepRunning: boolean }): Promise<CheckpointReport> {
    const wasPaused = this.#paused;
    try {
      // Paused, nothing happens between what is written and the end.
      if (!options.keepRunning) await this.pause();
      await mkdir(dir, { mode: 0o700 });
      await this.#write(dir);
    } catch (cause) {
      if (!wasPaused) await this.resume().catch(() => {});
      const runs = await this.#answers();
      throw new CheckpointError(`cannot write a checkpoint of machine ${this.id} to ${dir}`, runs, { cause });
    }
    if (!options.keepRunning) await this.stop();
    return {};
  }

  stop(): Promise<void> {
    this.#stopping ??= this.#stop().catch((error) => {
      this.#stopping = undefined;
      throw error;
    });
    return this.#stopping;
  }

  async stats(): Promise<MachineStats> {
    const { memoryBytes, cpuUsec, pids, oomKills } = this.#parts.cgroups.stats(this.id);
    return { memoryBytes, cpuUsec, pids, oomKills };
  }

  memory(): MemoryReading | undefined {
    return this.#parts.cgroups.memory(this.id);
  }

  /** Ends what this object does in the background; the machine goes on. */
  async close(): Promise<void> {
    this.#ended.abort();
    await this.#protected;
  }

  async #write(dir: string): Promise<void> {
    try {
      await this.#parts.runsc.checkpoint(this.id, dir);
    } catch (error) {
      await rm(dir, { recursive: true, force: true });
      throw error;
    }
  }

  async #answers(): Promise<boolean> {
    return this.#stopping === undefined && (await this.#control.isRunning(this.id).catch(() => false));
  }

  async #stop(): Promise<void> {
    await this.close();
    await removeMachine(this.#parts, this.id, "cgroup");
  }

  /** Until the agent's own process has been seen; it may be made a little after the start has returned. */
  async #protect(): Promise<void> {
    for (let tries = 0; tries < PROTECT_TRIES && !this.#ended.signal.aborted; tries += 1) {
      if (protectAgent(this.#parts.cgroups.processes(this.id), this.pid, this.#agentPath)) return;
      await sleep(5 * (tries + 1), undefined, { signal: this.#ended.signal }).catch(() => {});
    }
  }

  #describe({ atMs }: ProcessExit): MachineExit {
    if (this.#stopping !== undefined) return { atMs, reason: "stopped" };
    this.#ended.abort();
    const said = this.#bundle.logTail();
    const { oomKills, pidsLimitHits } = this.#lastStats();
    if (oomKills > 0) {
      return { atMs, reason: "out-of-memory", detail: `${oomKills} processes were ended for the memory limit` };
    }
    const why = pidsLimitHits > 0 ? "the limit of processes was reached" : undefined;
    const detail = [why, said].filter((part) => part !== undefined).join(": ");
    return { atMs, reason: "crashed", ...(detail !== "" && { detail }) };
  }

  #lastStats(): { oomKills: number; pidsLimitHits: number } {
    try {
      return this.#parts.cgroups.stats(this.id);
    } catch {
      return { oomKills: 0, pidsLimitHits: 0 };
    }
  }
}

function goneAlready(): Promise<ProcessExit> {
  return Promise.resolve({ exitCode: -1, signal: 0, atMs: Date.now() });
}
