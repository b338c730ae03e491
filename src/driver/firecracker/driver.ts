import { mkdir, readdir, rmdir } from "node:fs/promises";
import { join } from "node:path";
import { AenvError } from "#domain";
import { together } from "#lib/together";
import { openCgroups } from "../cgroup/index.ts";
import type { Driver, DriverCapabilities, Machine, MachineId, MachineNetwork, MachineSpec } from "../driver.ts";
import { undoStart } from "../process-machine.ts";
import { FirecrackerApi } from "./api.ts";
import { readDescription, STATE, TOOLS, UPPER } from "./checkpoint.ts";
import { Files } from "./files.ts";
import { MachineFolder } from "./folder.ts";
import { commandLine, guestConfig, memoryMib } from "./guest.ts";
import { type Jail, Jails } from "./jails.ts";
import { hostLimits } from "./limits.ts";
import { FirecrackerMachine, type Place } from "./machine.ts";
import { MemoryLayers } from "./memory-layers.ts";
import type { FirecrackerOptions, Parts } from "./parts.ts";
import { findLeftovers, machinesDir, removeMachine } from "./remains.ts";
import { firecrackerVersion, processorModel } from "./version.ts";
import { TAP } from "./wiring.ts";

/** Names of files inside a jail; a snapshot names its drives by them. */
const IMAGE = "image";
const MEMORY = "memory";
const GUEST_DEVICE = "eth0";
/** Of one Firecracker machine. */
const MAX_VCPUS = 32;
/** A process that answers at all does so at once. */
const ANSWER_TIMEOUT_MS = 10_000;
const SNAPSHOT_DONE_TIMEOUT_MS = 120_000;

/** Errors: unavailable, when Firecracker does not run or says no version. */
export async function createFirecrackerDriver(options: FirecrackerOptions): Promise<Driver> {
  const version = await firecrackerVersion(options.firecrackerPath, options.runner);
  await mkdir(machinesDir({ options }), { recursive: true, mode: 0o700 });
  const files = await Files.open(options);
  const cgroups = openCgroups(options.cgroupParent);
  const parts: Parts = {
    options,
    cgroups,
    files,
    layers: await MemoryLayers.open(options.diskFiles, join(options.dir, "assembled")),
    jails: await Jails.open(options, cgroups, files.program),
    processor: await processorModel(),
  };
  const driver = new FirecrackerDriver(parts, version);
  await driver.removeStrays();
  options.logger.info("Firecracker driver", { version, driver: driver.name });
  return driver;
}

class FirecrackerDriver implements Driver {
  readonly name: string;
  readonly version: string;
  readonly capabilities: DriverCapabilities;
  readonly #parts: Parts;
  readonly #machines = new Map<MachineId, FirecrackerMachine>();

  constructor(parts: Parts, version: string) {
    const { kind } = parts.options;
    // Another name, so that whoever compares says that the two are not interchangeable.
    this.name = kind === "pvm" ? "firecracker-pvm" : "firecracker";
    this.version = version;
    this.capabilities = {
      clonesShareUserRandomness: true,
      incrementalMemory: kind === "kvm",
      limitsKeptBy: "guest",
      diskCapture: "flushed",
      maxVcpus: MAX_VCPUS,
      imageInit: true,
    };
    this.#parts = parts;
  }

  prepare(network: MachineNetwork): Promise<void> {
    return this.#parts.jails.prepare(network);
  }

  unprepare(network: MachineNetwork): Promise<void> {
    return this.#parts.jails.unprepare(network);
  }

  boot(spec: MachineSpec, { diskFrom }: { readonly diskFrom?: string } = {}): Promise<Machine> {
    const { options, files, jails } = this.#parts;
    const provide = async (jail: Jail): Promise<void> => {
      const source = diskFrom === undefined ? files.emptyUpper(spec.resources.diskBytes) : join(diskFrom, UPPER);
      const upper = Promise.resolve(source).then((path) => this.#giveUpper(jail, path));
      const tools = files.tools(spec.agentDir).then((drive) => jails.link(jail, drive, TOOLS));
      await together([
        jails.link(jail, files.kernel, "vmlinux"),
        jails.link(jail, files.initrd, "initrd"),
        upper,
        tools,
      ]);
    };
    return this.#launch(spec, provide, async (api, folder) => {
      await api.setMachine({
        vcpu_count: Math.max(1, Math.ceil(spec.resources.vcpus)),
        mem_size_mib: memoryMib(spec.resources.memoryBytes),
        track_dirty_pages: options.kind === "kvm",
      });
      const args = commandLine(guestConfig(spec), options.kernelArgs);
      await api.setBootSource({ kernel_image_path: "/vmlinux", initrd_path: "/initrd", boot_args: args });
      for (const name of [IMAGE, UPPER, TOOLS]) {
        await api.addDrive({
          drive_id: name,
          path_on_host: `/${name}`,
          is_root_device: false,
          is_read_only: name !== UPPER,
        });
      }
      await api.addNetwork({ iface_id: GUEST_DEVICE, host_dev_name: TAP, guest_mac: spec.network.macAddress });
      await api.addEntropy();
      // All that is written is known from here on, and everything else is zero.
      if (options.kind === "kvm") await folder.writeBase({ dir: folder.dir, layers: [] });
      await api.start();
    });
  }

  restore(spec: MachineSpec, checkpointDir: string): Promise<Machine> {
    const { options, jails, layers, processor } = this.#parts;
    const tracked = options.kind === "kvm";
    const rememberBase = async (jail: Jail, folder: MachineFolder): Promise<void> => {
      if (tracked) await folder.writeBase({ dir: jail.root, layers: [MEMORY] });
    };
    const provide = async (jail: Jail, folder: MachineFolder): Promise<void> => {
      const description = await readDescription(checkpointDir, { kind: options.kind, processor });
      const { resources } = spec;
      if (description.memoryBytes !== resources.memoryBytes) {
        throw new AenvError(
          "conflict",
          `the checkpoint has ${description.memoryBytes} bytes of memory, the machine is to have ${resources.memoryBytes}`,
        );
      }
      const memory = join(jail.root, MEMORY);
      const chain = { dir: checkpointDir, layers: description.layers };
      await together([
        // Whoever takes the machine up asks Firecracker first whether it was ever started.
        layers.assemble(chain, memory).then(() => rememberBase(jail, folder)),
        jails.link(jail, join(checkpointDir, STATE), STATE),
        jails.link(jail, join(checkpointDir, TOOLS), TOOLS),
        this.#giveUpper(jail, join(checkpointDir, UPPER)),
      ]);
    };
    return this.#launch(spec, provide, (api) =>
      api.loadSnapshot({ statePath: `/${STATE}`, memoryPath: `/${MEMORY}` }, { trackDirtyPages: tracked }),
    );
  }

  async adopt(spec: MachineSpec): Promise<Machine | undefined> {
    const folder = new MachineFolder(machinesDir(this.#parts), spec.id);
    const record = folder.read();
    const jail = record && this.#parts.jails.find(record.jail);
    if (record === undefined || jail === undefined) return undefined;
    const api = new FirecrackerApi(jail.socketPath);
    // One that writes a snapshot, which an earlier server asked for, answers when it is done.
    const timeoutMs = this.#parts.jails.writesSnapshot(jail) ? SNAPSHOT_DONE_TIMEOUT_MS : ANSWER_TIMEOUT_MS;
    const state = await api.state(timeoutMs).catch((cause: unknown) => {
      if (this.#parts.jails.find(jail.id) === undefined) return undefined;
      throw new AenvError("internal", `machine ${spec.id} runs and does not answer`, { cause });
    });
    api.close();
    // One whose start was never finished is none that could be gone on with.
    if (state !== "Running" && state !== "Paused") return undefined;
    return this.#take(spec, { jail, folder }, record.version, state === "Paused");
  }

  leftovers(): Promise<MachineId[]> {
    return findLeftovers(this.#parts);
  }

  async destroy(id: MachineId): Promise<void> {
    await this.#machines.get(id)?.stop();
    await removeMachine(this.#parts, id);
  }

  /** Machines go on. What was prepared for machines that never came ends. */
  async close(): Promise<void> {
    await this.removeStrays();
    await this.#parts.jails.close();
    // Others may keep things there too.
    await rmdir(this.#parts.options.stateDir).catch(() => {});
    if ((await this.leftovers()).length === 0) await this.#parts.cgroups.removeParent();
  }

  /** Ends every jail that no machine runs in: prepared by this server, or left by one before. */
  async removeStrays(): Promise<void> {
    const records = (await readdir(machinesDir(this.#parts))).map((id) =>
      new MachineFolder(machinesDir(this.#parts), id).read(),
    );
    await this.#parts.jails.removeOthers(new Set(records.flatMap((record) => record?.jail ?? [])));
  }

  /** `provide` puts all but the image into the jail, `start` tells Firecracker. */
  async #launch(
    spec: MachineSpec,
    provide: (jail: Jail, folder: MachineFolder) => Promise<void>,
    start: (api: FirecrackerApi, folder: MachineFolder) => Promise<void>,
  ): Promise<Machine> {
    const { id } = spec;
    const { cgroups, jails, options } = this.#parts;
    const folder = new MachineFolder(machinesDir(this.#parts), id);
    // Fails for an id that has been used: whose machine that is, the undoing below must not touch it.
    folder.make();
    let jail: Jail | undefined;
    try {
      jail = await jails.take(spec.network);
      folder.write({ jail: jail.id, version: this.version });
      cgroups.limit(jail.id, hostLimits(spec.resources));
      await together([jails.link(jail, spec.image.file, IMAGE), provide(jail, folder)]);
      const api = new FirecrackerApi(jail.socketPath);
      await start(api, folder).finally(() => api.close());
      options.logger.debug("calls of Firecracker's API that started a machine", { machineId: id, count: api.calls });
      return this.#take(spec, { jail, folder }, this.version, false);
    } catch (cause) {
      const said = jail && jails.lastWords(jail.id);
      throw await undoStart(id, { cause, said, remove: () => removeMachine(this.#parts, id) });
    }
  }

  /** A copy of its own, that the process may write. */
  async #giveUpper(jail: Jail, source: string): Promise<void> {
    const { options, jails } = this.#parts;
    const upper = join(jail.root, UPPER);
    await options.diskFiles.copy(source, upper);
    await jails.give(jail, upper);
  }

  #take(spec: MachineSpec, place: Place, version: string, paused: boolean): FirecrackerMachine {
    const machine = new FirecrackerMachine(this.#parts, spec, place, version, paused);
    this.#machines.set(spec.id, machine);
    void machine.exited.then(() => this.#machines.delete(spec.id));
    return machine;
  }
}
