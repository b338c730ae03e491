import { link, lstat, mkdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { MIB, type Resources } from "#domain";
import { startTicks } from "#lib/proc";
import type { ProcessExit } from "#lib/run";
import {
  CheckpointError,
  type CheckpointReport,
  type Machine,
  type MachineExit,
  type MachineId,
  type MachineSpec,
  type MachineStats,
} from "../driver.ts";
import { FirecrackerApi } from "./api.ts";
import { STATE, TOOLS, takeOver, UPPER, writeDescription } from "./checkpoint.ts";
import { upperBytes } from "./files.ts";
import { MachineFolder } from "./folder.ts";
import { memoryMib } from "./guest.ts";
import type { Jail, ScratchFile } from "./jails.ts";
import type { Parts } from "./parts.ts";
import { removeMachine } from "./remains.ts";

/** A VM that runs. Calls on one machine come one after another, `stop` excepted. */
export class FirecrackerMachine implements Machine {
  readonly id: MachineId;
  readonly pid: number;
  readonly version: string;
  readonly exited: Promise<MachineExit>;
  readonly #parts: Parts;
  readonly #jail: Jail;
  readonly #api: FirecrackerApi;
  readonly #folder: MachineFolder;
  readonly #resources: Resources;
  #paused: boolean;
  #stopping: Promise<void> | undefined;

  /** Preconditions: the VM in this jail has been started, and is paused or not as `paused` says. */
  constructor(parts: Parts, { id, resources }: MachineSpec, jail: Jail, version: string, paused: boolean) {
    this.id = id;
    this.pid = jail.pid;
    this.version = version;
    this.#parts = parts;
    this.#jail = jail;
    this.#api = new FirecrackerApi(jail.socketPath);
    this.#folder = new MachineFolder(join(parts.options.dir, "machines"), id);
    this.#resources = resources;
    this.#paused = paused;
    // A process that has gone already has no start time; whoever has its pid by then does not end with it.
    const ticks = startTicks(jail.pid);
    const exit = ticks === undefined ? goneAlready() : parts.options.watcher.exited(jail.pid, ticks);
    this.exited = exit.then((ended) => this.#describe(ended));
  }

  async pause(): Promise<void> {
    if (this.#paused) return;
    await this.#api.pause();
    this.#paused = true;
  }

  async resume(): Promise<void> {
    if (!this.#paused) return;
    await this.#api.resume();
    this.#paused = false;
  }

  async checkpoint(dir: string, options: { readonly keepRunning: boolean }): Promise<CheckpointReport> {
    const wasPaused = this.#paused;
    let made = false;
    let report: CheckpointReport;
    try {
      await mkdir(dir, { mode: 0o700 });
      made = true;
      report = await this.#write(dir, async () => {
        if (options.keepRunning && !wasPaused) await this.resume();
      });
    } catch (cause) {
      const runs = await this.#recover(wasPaused);
      if (made) await rm(dir, { recursive: true, force: true });
      throw new CheckpointError(`cannot write a checkpoint of machine ${this.id} to ${dir}`, runs, { cause });
    }
    if (!options.keepRunning) await this.stop();
    return report;
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

  /** The guest's own kernel keeps it. */
  memory(): undefined {
    return undefined;
  }

  /** `onCaptured`: nothing of what is still to be written can be changed by the machine any more. */
  async #write(dir: string, onCaptured: () => Promise<void>): Promise<CheckpointReport> {
    const { options, layers, processor } = this.#parts;
    const inJail = (name: string): string => join(this.#jail.root, name);
    const { state, memory } = this.#snapshotFiles();
    const base = options.kind === "kvm" ? this.#folder.readBase() : undefined;
    // Firecracker would write into what lies there.
    await this.#removeSnapshotFiles();
    await this.pause();
    // Firecracker forgets what was written as it writes it down: whatever comes between here and the end, the next
    // checkpoint cannot build on the last one.
    await this.#folder.forgetBase();
    await this.#api.createSnapshot(base === undefined ? "Full" : "Diff", {
      statePath: state.inside,
      memoryPath: memory.inside,
    });
    const { uid } = this.#jail;
    const { size } = await lstat(inJail(UPPER));
    if (size !== upperBytes(this.#resources.diskBytes)) throw new Error(`the disk has ${size} bytes now`);
    await options.diskFiles.copy(inJail(UPPER), join(dir, UPPER));
    await onCaptured();
    await takeOver(state.outside, join(dir, STATE), { uid });
    await link(inJail(TOOLS), join(dir, TOOLS));
    const chain = base ?? { dir, layers: [] };
    const memoryBytes = memoryMib(this.#resources.memoryBytes) * MIB;
    const extended = await layers.extend(chain, { path: memory.outside, uid, sizeBytes: memoryBytes }, dir);
    await writeDescription(dir, {
      kind: options.kind,
      processor,
      memoryBytes: this.#resources.memoryBytes,
      layers: extended.layers,
    });
    if (options.kind === "kvm") await this.#folder.writeBase({ dir, layers: extended.layers });
    return base === undefined ? {} : { dirtyMemory: extended.dirty };
  }

  /** After a checkpoint that failed. False: the machine is gone, or has been ended because it could not be made to go on. */
  async #recover(wasPaused: boolean): Promise<boolean> {
    if (this.#stopping !== undefined) return false;
    try {
      // Also when Firecracker still writes what nobody waits for any more.
      this.#paused = (await this.#api.state()) === "Paused";
      if (!wasPaused) await this.resume();
      // They would fill the disk that may have been full.
      await this.#removeSnapshotFiles();
      return true;
    } catch {
      await this.stop();
      return false;
    }
  }

  #snapshotFiles(): { readonly state: ScratchFile; readonly memory: ScratchFile } {
    const { jails } = this.#parts;
    return { state: jails.scratch(this.#jail, "state"), memory: jails.scratch(this.#jail, "memory") };
  }

  async #removeSnapshotFiles(): Promise<void> {
    for (const { outside } of Object.values(this.#snapshotFiles())) await rm(outside, { force: true });
  }

  async #stop(): Promise<void> {
    this.#api.close();
    await removeMachine(this.#parts, this.id);
  }

  #describe({ atMs }: ProcessExit): MachineExit {
    if (this.#stopping !== undefined) return { atMs, reason: "stopped" };
    this.#api.close();
    const { oomKills } = this.#lastStats();
    if (oomKills > 0)
      return { atMs, reason: "out-of-memory", detail: "the virtual machine was ended for its memory limit" };
    const said = this.#parts.jails.lastWords(this.#jail.id);
    return { atMs, reason: "crashed", ...(said !== undefined && { detail: said }) };
  }

  #lastStats(): { oomKills: number } {
    try {
      return this.#parts.cgroups.stats(this.id);
    } catch {
      return { oomKills: 0 };
    }
  }
}

function goneAlready(): Promise<ProcessExit> {
  return Promise.resolve({ exitCode: -1, signal: 0, atMs: Date.now() });
}
