import { mkdir, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import {
  CheckpointError,
  type CheckpointOptions,
  type CheckpointReport,
  type Machine,
  type MachineExit,
  type MachineId,
  type MachineSpec,
  type MachineStats,
  type MemoryReading,
} from "../driver.ts";
import { AgentProcess } from "./agent.ts";
import type { FakeAgent, FakeHost } from "./host.ts";

export const CHECKPOINT_FILE = "fake.json";
export const DISK_FILE = "fake-disk.json";
/** The driver's version, and so every machine's. */
export const FAKE_VERSION = "1";

export class FakeMachine implements Machine {
  readonly id: MachineId;
  readonly version = FAKE_VERSION;
  readonly exited: Promise<MachineExit>;
  readonly #host: FakeHost;
  readonly #spec: MachineSpec;
  readonly #agent: AgentProcess | undefined;
  readonly #exit = Promise.withResolvers<MachineExit>();
  #swappedBytes = 0;

  private constructor(host: FakeHost, spec: MachineSpec, agent: AgentProcess | undefined) {
    this.id = spec.id;
    this.exited = this.#exit.promise;
    this.#host = host;
    this.#spec = spec;
    this.#agent = agent;
    void agent?.ended.then(() => this.end({ atMs: Date.now(), reason: "crashed", detail: "its agent ended" }));
  }

  static async start(host: FakeHost, spec: MachineSpec, agent: FakeAgent | undefined): Promise<FakeMachine> {
    return new FakeMachine(host, spec, agent && (await AgentProcess.start(agent, spec)));
  }

  /** A machine without an agent has no process: it ends with the one that plays its host. */
  get pid(): number {
    return this.#agent?.pid ?? process.pid;
  }

  async pause(): Promise<void> {
    this.#host.mayFail("pause");
    await this.#agent?.stop();
  }

  async resume(): Promise<void> {
    this.#host.mayFail("resume");
    this.#swappedBytes = Math.min(this.#swappedBytes, Math.max(0, this.#allBytes() - this.#host.neededBytes));
    this.#agent?.signal("SIGCONT");
  }

  async checkpoint(dir: string, { keepRunning, capture }: CheckpointOptions): Promise<CheckpointReport> {
    try {
      if (!this.#host.running.has(this.id)) throw new Error(`machine ${this.id} has ended`);
      this.#host.mayFail("checkpoint");
      await mkdir(dir);
      await writeFile(join(dir, capture === "disk" ? DISK_FILE : CHECKPOINT_FILE), JSON.stringify({ of: this.id }));
    } catch (error) {
      if (error instanceof CheckpointError) {
        await this.#failed(dir, error);
        throw error;
      }
      throw new CheckpointError(`cannot write a checkpoint of machine ${this.id} to ${dir}`, this.#runs(), {
        cause: error,
      });
    }
    if (!keepRunning) await this.stop();
    return {};
  }

  async stop(): Promise<void> {
    this.#host.mayFail("stop");
    await this.end({ atMs: Date.now(), reason: "stopped" });
    this.#host.remains.delete(this.id);
  }

  async stats(): Promise<MachineStats> {
    return {
      memoryBytes: this.heldBytes,
      cpuUsec: 0,
      pids: 1,
      oomKills: 0,
    };
  }

  async reclaim(): Promise<void> {
    this.#host.mayFail("reclaim");
    this.#host.reclaimed.push(this.id);
    this.#swappedBytes += Math.min(this.#host.reclaimAtOnceBytes, this.heldBytes);
  }

  async bringBackRuntime(): Promise<void> {
    this.#host.mayFail("bringBackRuntime");
    this.#host.broughtBack.push(this.id);
  }

  memory(): MemoryReading | undefined {
    return this.#runs() ? { usedBytes: 0, oomKills: 0 } : undefined;
  }

  /** Ends the machine for a reason of the host's. Repeatable; the first reason counts. */
  async end(exit: MachineExit): Promise<void> {
    this.#exit.resolve(exit);
    this.#host.running.delete(this.id);
    await this.#agent?.kill();
  }

  /** In memory, without what is in swap. */
  get heldBytes(): number {
    return Math.max(0, this.#allBytes() - this.#swappedBytes);
  }

  /** With what is in swap. */
  #allBytes(): number {
    return Math.min(this.#host.memoryBytes, this.#spec.resources.memoryBytes);
  }

  #runs(): boolean {
    return this.#host.running.has(this.id);
  }

  /** A scripted failure says itself whether it takes the machine along. */
  async #failed(dir: string, error: CheckpointError): Promise<void> {
    await rm(dir, { recursive: true, force: true });
    if (!error.machineRuns) await this.end({ atMs: Date.now(), reason: "crashed", detail: error.message });
  }
}
