import { existsSync } from "node:fs";
import { mkdir, readdir, rm, rmdir } from "node:fs/promises";
import { join } from "node:path";
import { AenvError } from "#domain";
import { isMissing } from "#lib/files";
import type { Logger } from "#lib/log";
import type { CommandRunner, ProcessWatcher } from "#lib/run";
import { type Cgroups, openCgroups } from "../cgroup/index.ts";
import type { Driver, DriverCapabilities, Machine, MachineId, MachineSpec } from "../driver.ts";
import { undoStart } from "../process-machine.ts";
import { Bundle } from "./bundle.ts";
import { ControlSocket } from "./control.ts";
import { findLeftovers, goferOf, isSandboxOf, type MachineParts, removeMachine, unmountWholly } from "./leftovers.ts";
import { GvisorMachine, type MachineTools } from "./machine.ts";
import { Runsc } from "./runsc.ts";
import { SentrySave, stateWritten } from "./sentry-save.ts";
import { MOUNT_POINTS } from "./spec.ts";

export interface GvisorOptions {
  readonly runscPath: string;
  /** Our own program, by which a sandbox is captured. */
  readonly sentrySavePath: string;
  /** Starts runsc; what runsc starts must outlive this server. */
  readonly runner: CommandRunner;
  readonly watcher: ProcessWatcher;
  /** For records and sockets, `/run/aenv/0`; short, because a socket's path has at most 107 characters. */
  readonly stateDir: string;
  /** For a folder for each machine, `<data>/machines`. */
  readonly machinesDir: string;
  /** For the machines' writable layers, `<data>/uppers`. */
  readonly uppersDir: string;
  /** Path of the machines' cgroups from the root of the hierarchies, `/aenv/0`. */
  readonly cgroupParent: string;
  readonly logger: Logger;
}

const MAX_SOCKET_PATH_CHARS = 107;
const ID_CHARS = 64;
/** A network namespace that runsc keeps in its root for all gofers. */
const NULL_NETNS = "null-netns";

/** Errors: unavailable, when runsc does not run or does not know its version, or a program of ours is missing; invalid, when `stateDir` is too long. */
export async function createGvisorDriver(options: GvisorOptions): Promise<Driver> {
  const root = join(options.stateDir, "r");
  if (root.length + "/runsc-.sock".length + ID_CHARS > MAX_SOCKET_PATH_CHARS) {
    throw new AenvError("invalid", `the path of the state folder is too long for sockets in it: ${options.stateDir}`);
  }
  await mkdir(root, { recursive: true, mode: 0o700 });
  for (const dir of [options.machinesDir, options.uppersDir]) await mkdir(dir, { recursive: true, mode: 0o700 });
  const runsc = await Runsc.open(options.runscPath, root, options.runner);
  options.logger.info("gVisor driver", { version: runsc.version });
  return new GvisorDriver(options, runsc, openCgroups(options.cgroupParent));
}

class GvisorDriver implements Driver {
  readonly name = "gvisor";
  readonly version: string;
  readonly capabilities: DriverCapabilities = {
    monotonicJumps: true,
    clonesShareUserRandomness: true,
    incrementalMemory: false,
    limitsKeptBy: "host",
    diskCapture: "complete",
    imageInit: false,
  };
  readonly #options: GvisorOptions;
  readonly #runsc: Runsc;
  readonly #cgroups: Cgroups;
  readonly #parts: MachineParts;
  readonly #tools: MachineTools;
  readonly #machines = new Map<MachineId, GvisorMachine>();

  constructor(options: GvisorOptions, runsc: Runsc, cgroups: Cgroups) {
    this.version = runsc.version;
    this.#options = options;
    this.#runsc = runsc;
    this.#cgroups = cgroups;
    this.#parts = { runsc, cgroups, machinesDir: options.machinesDir };
    const { watcher, sentrySavePath, runner } = options;
    this.#tools = { watcher, sentrySave: new SentrySave(sentrySavePath, runner) };
  }

  /** A sandbox cannot be begun without knowing what it will run. */
  async prepare(): Promise<void> {}

  async unprepare(): Promise<void> {}

  async boot(spec: MachineSpec, { diskFrom }: { readonly diskFrom?: string } = {}): Promise<Machine> {
    const missing = MOUNT_POINTS.filter((path) => !existsSync(join(spec.image.dir, path)));
    if (missing.length > 0) {
      throw new AenvError(
        "invalid",
        `image at ${spec.image.dir} has no ${missing.join(", ")}, where a machine mounts things`,
      );
    }
    return this.#launch(spec, (bundle, upper) =>
      this.#runsc.run(spec.id, bundle, upper, spec.resources.diskBytes, diskFrom),
    );
  }

  restore(spec: MachineSpec, checkpointDir: string): Promise<Machine> {
    return this.#launch(spec, (bundle, upper) =>
      this.#runsc.restore(spec.id, bundle, upper, spec.resources.diskBytes, checkpointDir),
    );
  }

  async adopt(spec: MachineSpec): Promise<Machine | undefined> {
    const { id } = spec;
    const pid = new Bundle(this.#options.machinesDir, id).readPid();
    if (pid === undefined || !isSandboxOf(pid, id, this.#parts)) return undefined;
    const control = new ControlSocket(this.#runsc.socket(id));
    let paused = await control.isPaused().catch(() => false);
    if (paused) {
      // Perhaps by itself, for as long as it writes its state.
      await stateWritten(pid);
      paused = await control.isPaused();
    }
    // A sandbox that does not answer, whose first process never started, or that has lost its files, is none that could be gone on
    // with.
    const running = await control.isRunning(id).catch(() => false);
    if (!running || goferOf(id, this.#parts) === undefined) return undefined;
    return this.#take(spec, pid, paused);
  }

  leftovers(): Promise<MachineId[]> {
    return findLeftovers(this.#parts);
  }

  async destroy(id: MachineId): Promise<void> {
    await this.#machines.get(id)?.stop();
    await removeMachine(this.#parts, id, "anywhere");
  }

  /** Machines go on. Where none is left, what they shared goes as well. */
  async close(): Promise<void> {
    for (const machine of this.#machines.values()) await machine.close();
    const root = this.#runsc.root;
    const names = await readdir(root).catch((error) => {
      if (isMissing(error)) return [];
      throw error;
    });
    if (names.some((name) => name !== NULL_NETNS)) return;
    const netns = join(root, NULL_NETNS);
    if (names.length > 0) await unmountWholly(this.#options.runner, netns);
    await rm(root, { recursive: true, force: true });
    // Others may keep things there too.
    await rmdir(this.#options.stateDir).catch(() => {});
    await this.#cgroups.removeParent();
  }

  async #launch(spec: MachineSpec, start: (bundle: Bundle, upper: string) => Promise<void>): Promise<Machine> {
    const { id } = spec;
    const bundle = new Bundle(this.#options.machinesDir, id);
    // Fails for an id that has been used: whose machine that is, the undoing below must not touch it.
    bundle.make();
    try {
      await this.#cgroups.create(id, spec.resources);
      await start(bundle, bundle.fill(spec, this.#options.uppersDir, this.#cgroups.path(id), this.version));
      const pid = bundle.readPid();
      if (pid === undefined) throw new Error("runsc did not say which process the sandbox is");
      return this.#take(spec, pid, false);
    } catch (cause) {
      const remove = (): Promise<void> => removeMachine(this.#parts, id, "anywhere");
      throw await undoStart(id, { cause, said: bundle.logTail(), remove });
    }
  }

  #take(spec: MachineSpec, pid: number, paused: boolean): GvisorMachine {
    const machine = new GvisorMachine(this.#parts, this.#tools, spec, pid, paused);
    this.#machines.set(spec.id, machine);
    void machine.exited.then(() => this.#machines.delete(spec.id));
    return machine;
  }
}
