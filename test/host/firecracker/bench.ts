import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { Resources } from "#domain";
import type { Driver, MachineId, MachineImage, MachineNetwork, MachineSpec } from "#driver";
import { createFirecrackerDriver, type FirecrackerOptions } from "#driver/firecracker";
import type { ByteRange, DiskFiles } from "#lib/disk-files";
import { silentLogger } from "#lib/log";
import { type DriverHarness, testMachineId } from "../../../src/driver/testing.ts";
import { fromEnvironment, MachineHost } from "../machines/host.ts";
import { TestBlobd } from "./blobd.ts";

/** What VMs under test are made of. */
export interface FirecrackerGuest {
  readonly kernelPath: string;
  readonly initrdPath: string;
  /** Whether the guest is a Linux that runs the agent. */
  readonly hasAgent: boolean;
  /** The flat file of the image, on the file system that tests' folders are on. */
  readonly imagePath: string;
  readonly kernelArgs?: string;
}

/** A host for VMs: what they are made of, and the driver. */
export class FirecrackerBench implements DriverHarness {
  readonly host: MachineHost;
  readonly blobd: TestBlobd;
  readonly #guest: FirecrackerGuest;
  readonly #kind: FirecrackerOptions["kind"];
  readonly #apiCalls: number[] = [];
  readonly #files: ScriptedFiles;
  /** The one that was opened last: it works in the slots that wait. */
  #driver: Driver | undefined;

  private constructor(
    host: MachineHost,
    blobd: TestBlobd,
    guest: FirecrackerGuest,
    kind: FirecrackerOptions["kind"],
    companion: Companion,
  ) {
    this.host = host;
    this.blobd = blobd;
    this.#guest = guest;
    this.#kind = kind;
    this.#files = new ScriptedFiles(blobd.store.files);
    companion.driver = () => this.#driver;
  }

  static async open(
    guest: (dir: string) => FirecrackerGuest | Promise<FirecrackerGuest>,
    kind: FirecrackerOptions["kind"] = "kvm",
  ): Promise<FirecrackerBench> {
    const companion = new Companion();
    const host = await MachineHost.open("firecracker", companion);
    const blobd = await TestBlobd.start(host.dir);
    const bench = new FirecrackerBench(host, blobd, await guest(host.dir), kind, companion);
    await bench.open();
    await host.start();
    return bench;
  }

  /** The next call of one of these operations on files fails. */
  failNext(...operations: readonly (keyof DiskFiles)[]): void {
    this.#files.next = { operations, settle: Promise.reject(new Error(`scripted failure of ${operations[0]}`)) };
    this.#files.next.settle.catch(() => {});
  }

  /** The next call of this operation on files does not begin before it is told to go on, or to fail. */
  holdNext(operation: keyof DiskFiles): {
    readonly reached: Promise<void>;
    readonly goOn: () => void;
    readonly fail: () => void;
  } {
    const [held, reached] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    held.promise.catch(() => {});
    this.#files.next = { operations: [operation], settle: held.promise, onReached: reached.resolve };
    return {
      reached: reached.promise,
      goOn: held.resolve,
      fail: () => held.reject(new Error(`${operation} never came to its end`)),
    };
  }

  /** How many calls each start so far has taken. */
  apiCalls(): readonly number[] {
    return this.#apiCalls;
  }

  /** How many operations on files blobd has been asked for so far. */
  fileCalls(): number {
    return this.#files.calls;
  }

  /** Ids of all jails there are. */
  jails(): string[] {
    return readdirSync(join(this.driverDir, "jails", "firecracker"));
  }

  /** The root folder of a machine's jail. */
  jailOf(id: MachineId): string {
    return this.jailRoot(this.#jailIdOf(id));
  }

  #jailIdOf(id: MachineId): string {
    return JSON.parse(readFileSync(join(this.driverDir, "machines", id, "machine.json"), "utf8")).jail;
  }

  jailRoot(jail: string): string {
    return join(this.driverDir, "jails", "firecracker", jail, "root");
  }

  get driver(): Driver {
    if (this.#driver === undefined) throw new Error("no driver has been opened");
    return this.#driver;
  }

  get driverDir(): string {
    return join(this.host.dir, "firecracker");
  }

  async open(changed: Partial<FirecrackerOptions> = {}): Promise<Driver> {
    this.#driver = await createFirecrackerDriver({
      kind: this.#kind,
      firecrackerPath: fromEnvironment("AENV_TEST_FIRECRACKER"),
      jailerPath: fromEnvironment("AENV_TEST_JAILER"),
      kernelPath: this.#guest.kernelPath,
      initrdPath: this.#guest.initrdPath,
      kernelArgs: this.#guest.kernelArgs ?? "",
      runner: this.host.runner,
      watcher: this.host.watcher,
      diskFiles: this.#files,
      stateDir: this.host.stateDir,
      dir: this.driverDir,
      cgroupParent: this.host.cgroupParent,
      firstUid: 1_880_000_000,
      logger: {
        ...silentLogger,
        debug: (_, fields) => {
          if (fields?.count !== undefined) this.#apiCalls.push(fields.count);
        },
      },
      ...changed,
    });
    return this.#driver;
  }

  async spec(resources: Resources, image: Partial<MachineImage> = {}): Promise<MachineSpec> {
    const id = testMachineId();
    return {
      id,
      resources,
      hostname: "under-test",
      image: { dir: "/nowhere", file: this.#guest.imagePath, ...image },
      agentDir: this.host.agentDir,
      network: await this.host.network(id),
    };
  }

  agentAddress(spec: MachineSpec): string | undefined {
    return this.#guest.hasAgent ? this.host.agentAddress(spec) : undefined;
  }

  /** A slot costs an emulated processor more than a second, and no machine changes anything of it. */
  reuse({ id }: MachineSpec): void {
    this.host.reuse(id);
  }

  /** A machine's groups are its jail's. */
  cgroupDirs(id: MachineId): string[] {
    return this.host.cgroupDirs(this.#jailIdOf(id));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.host.close(this.#driver);
    await this.blobd[Symbol.asyncDispose]();
  }
}

interface Scripted {
  readonly operations: readonly (keyof DiskFiles)[];
  readonly settle: Promise<void>;
  readonly onReached?: () => void;
}

/** The real ones, but for what a test scripts. */
class ScriptedFiles implements DiskFiles {
  next: Scripted | undefined;
  calls = 0;
  readonly #real: DiskFiles;

  constructor(real: DiskFiles) {
    this.#real = real;
  }

  async copy(source: string, target: string): Promise<{ readonly shared: boolean; readonly copiedBytes: number }> {
    await this.#mayFail("copy");
    return this.#real.copy(source, target);
  }

  async applyLayers(layers: readonly string[], target: string): Promise<void> {
    await this.#mayFail("applyLayers");
    await this.#real.applyLayers(layers, target);
  }

  async dataRanges(path: string): Promise<readonly ByteRange[]> {
    await this.#mayFail("dataRanges");
    return this.#real.dataRanges(path);
  }

  async unsharedRanges(path: string): Promise<readonly ByteRange[]> {
    await this.#mayFail("unsharedRanges");
    return this.#real.unsharedRanges(path);
  }

  async seal(files: Parameters<DiskFiles["seal"]>[0]): Promise<void> {
    await this.#mayFail("seal");
    await this.#real.seal(files);
  }

  async packDirectory(dir: string, target: string): Promise<void> {
    await this.#mayFail("packDirectory");
    await this.#real.packDirectory(dir, target);
  }

  async #mayFail(operation: keyof DiskFiles): Promise<void> {
    this.calls += 1;
    if (!this.next?.operations.includes(operation)) return;
    const { settle, onReached } = this.next;
    this.next = undefined;
    onReached?.();
    await settle;
  }
}

/** Passes on to whichever driver there is. */
class Companion {
  driver: () => Driver | undefined = () => undefined;

  async prepare(network: MachineNetwork): Promise<void> {
    await this.driver()?.prepare(network);
  }

  async unprepare(network: MachineNetwork): Promise<void> {
    await this.driver()?.unprepare(network);
  }
}
