import type { BigIntStats } from "node:fs";
import { link, lstat, mkdir, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { MIB, type Resources } from "#domain";
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
import { FirecrackerApi } from "./api.ts";
import { STATE, TOOLS, UPPER, writeDescription } from "./checkpoint.ts";
import { upperBytes } from "./files.ts";
import type { MachineFolder } from "./folder.ts";
import { memoryMib } from "./guest.ts";
import type { Jail, Lent } from "./jails.ts";
import type { Chain } from "./memory-layers.ts";
import type { Parts } from "./parts.ts";
import { removeMachine } from "./remains.ts";

/** Where a VM runs, and what is known of it. */
export interface Place {
  readonly jail: Jail;
  readonly folder: MachineFolder;
}

/** A VM that runs. Calls on one machine come one after another, `stop` excepted. */
export class FirecrackerMachine extends ProcessMachine {
  readonly #parts: Parts;
  readonly #jail: Jail;
  readonly #api: FirecrackerApi;
  readonly #folder: MachineFolder;
  readonly #resources: Resources;
  /** What the next checkpoint adds to is made shorter while nobody waits. Never rejects. */
  #shortening: Promise<void> = Promise.resolve();

  /** Preconditions: the VM in this jail has been started, and is paused or not as `paused` says. */
  constructor(parts: Parts, { id, resources }: MachineSpec, { jail, folder }: Place, version: string, paused: boolean) {
    // Its guest has no more memory than that, in swap or not.
    super({ id, pid: jail.pid, version, cgroup: jail.id, paused }, parts.cgroups, parts.options.watcher);
    this.#parts = parts;
    this.#jail = jail;
    this.#api = new FirecrackerApi(jail.socketPath);
    this.#folder = folder;
    this.#resources = resources;
  }

  async checkpoint(dir: string, options: CheckpointOptions): Promise<CheckpointReport> {
    const wasPaused = this.paused;
    let made = false;
    let report: CheckpointReport;
    try {
      await mkdir(dir, { mode: 0o700 });
      made = true;
      const onCaptured = async (): Promise<void> => {
        if (options.keepRunning && !wasPaused) await this.resume();
      };
      report = await (options.capture === "disk" ? this.#writeDisk(dir, onCaptured) : this.#write(dir, onCaptured));
    } catch (cause) {
      const runs = await this.#recover(wasPaused);
      if (made) await rm(dir, { recursive: true, force: true });
      throw new CheckpointError(`cannot write a checkpoint of machine ${this.id} to ${dir}`, runs, { cause });
    }
    if (!options.keepRunning) await this.stop();
    else if (!this.paused) this.#shortenLater();
    return report;
  }

  protected pauseNow(): Promise<void> {
    return this.#api.pause();
  }

  protected async resumeNow(): Promise<void> {
    await this.#api.resume();
    // Not while it stands still: most of those that do end that way.
    this.#shortenLater();
  }

  protected async remove(): Promise<void> {
    this.#api.close();
    await removeMachine(this.#parts, this.id, this.#shortening);
  }

  protected describeEnd(stats: CgroupStats | undefined): Omit<MachineExit, "atMs"> {
    this.#api.close();
    if (stats !== undefined && stats.oomKills > 0)
      return { reason: "out-of-memory", detail: "the virtual machine was ended for its memory limit" };
    const said = this.#parts.jails.lastWords(this.#jail.id);
    return { reason: "crashed", ...(said !== undefined && { detail: said }) };
  }

  /** `onCaptured`: nothing of what is still to be written can be changed by the machine any more. */
  async #write(dir: string, onCaptured: () => Promise<void>): Promise<CheckpointReport> {
    const { options, layers, jails } = this.#parts;
    const base = options.kind === "kvm" ? await this.#shortBase() : undefined;
    const chain = base ?? { dir, layers: [] };
    const state = join(dir, STATE);
    // Firecracker forgets what was written as it writes it down: whatever comes between here and the end, the next
    // checkpoint cannot build on the last one.
    const [lentState, memory, upper] = await together([
      this.#lendNew(state, STATE),
      this.#lendMemory(chain, dir),
      this.pause().then(() => this.#statUpper()),
      link(join(this.#jail.root, TOOLS), join(dir, TOOLS)),
      this.#folder.forgetBase(),
    ]);
    // Between a pause and its end Firecracker does what its API is told and nothing else; its devices do not move.
    const [, keepBase] = await together([
      this.#api.createSnapshot(base === undefined ? "Full" : "Diff", {
        statePath: lentState.inside,
        memoryPath: memory.lent.inside,
      }),
      this.#extend(chain, dir, memory.name),
      options.diskFiles.copy(join(this.#jail.root, UPPER), join(dir, UPPER)),
    ]);
    const sizeBytes = memoryMib(this.#resources.memoryBytes) * MIB;
    const written = [{ path: state }, { path: join(dir, memory.name), sizeBytes }];
    const [dirtyMemory] = await together([
      layers.written(chain, dir, memory.name),
      options.diskFiles.seal(written),
      jails.takeBack([lentState, memory.lent]),
      this.#checkUnchanged(upper).then(onCaptured),
    ]);
    await keepBase();
    return base === undefined ? {} : { dirtyMemory };
  }

  async #writeDisk(dir: string, onCaptured: () => Promise<void>): Promise<CheckpointReport> {
    await this.pause();
    await this.#statUpper();
    await this.#parts.options.diskFiles.copy(join(this.#jail.root, UPPER), join(dir, UPPER));
    await onCaptured();
    return {};
  }

  /** What the next checkpoint adds to, if there is anything. */
  async #shortBase(): Promise<Chain | undefined> {
    this.#shortenLater();
    await this.#shortening;
    const base = this.#folder.readBase();
    // One that could not be made shorter is not added to: a complete checkpoint needs none of it.
    return base !== undefined && this.#parts.layers.isLong(base) ? undefined : base;
  }

  /** Behind what of it is under way. */
  #shortenLater(): void {
    this.#shortening = this.#shortening.then(() => this.#shorten());
  }

  async #shorten(): Promise<void> {
    const { layers, options } = this.#parts;
    try {
      const base = this.#folder.readBase();
      if (base !== undefined && layers.isLong(base) && !this.isStopping)
        await this.#folder.shortenBase(base, (chain) => layers.shorten(chain));
    } catch (error) {
      options.logger.warn("a machine's memory on disk stays in many layers", { machineId: this.id, error });
    }
  }

  async #lendNew(path: string, name: string): Promise<Lent> {
    await writeFile(path, "", { flag: "wx", mode: 0o600 });
    return this.#parts.jails.lend(this.#jail, path, name);
  }

  async #lendMemory(chain: Chain, dir: string): Promise<{ readonly name: string; readonly lent: Lent }> {
    const name = await this.#parts.layers.begin(chain, dir);
    return { name, lent: await this.#parts.jails.lend(this.#jail, join(dir, name), "memory") };
  }

  async #statUpper(): Promise<BigIntStats> {
    const found = await lstat(join(this.#jail.root, UPPER), { bigint: true });
    if (found.size !== BigInt(upperBytes(this.#resources.diskBytes)))
      throw new Error(`the disk has ${found.size} bytes now`);
    return found;
  }

  async #checkUnchanged(upper: BigIntStats): Promise<void> {
    if ((await this.#statUpper()).mtimeNs !== upper.mtimeNs)
      throw new Error("the disk was written to while its machine was paused");
  }

  /** Writes down the layers of this checkpoint. Returns what makes the next one build on it. */
  async #extend(chain: Chain, dir: string, added: string): Promise<() => Promise<void>> {
    const { options, processor } = this.#parts;
    const { memoryBytes } = this.#resources;
    const layers = this.#parts.layers.extend(chain, added);
    await writeDescription(dir, { kind: options.kind, processor, memoryBytes, layers });
    return options.kind === "kvm" ? await this.#folder.stageBase({ dir, layers }) : async () => {};
  }

  /** After a checkpoint that failed. False: the machine is gone, or has been ended because it could not be made to go on. */
  async #recover(wasPaused: boolean): Promise<boolean> {
    if (this.isStopping) return false;
    try {
      // Also when Firecracker still writes what nobody waits for any more.
      this.paused = (await this.#api.state()) === "Paused";
      if (!wasPaused) await this.resume();
      // They would fill the disk that may have been full.
      await this.#parts.jails.takeBackAll(this.#jail);
      return true;
    } catch {
      await this.stop();
      return false;
    }
  }
}
