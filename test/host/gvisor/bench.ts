import { existsSync, lstatSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { copyFile, mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Resources } from "#domain";
import type { Driver, MachineId, MachineSpec } from "#driver";
import { createGvisorDriver } from "#driver/gvisor";
import { silentLogger } from "#lib/log";
import type { CommandRunner } from "#lib/run";
import { localRunner, localWatcher } from "#lib/spawn";
import { claimServer, createSlots, removeServerNetwork, type ServerClaim, type Slot, type SlotPool } from "#network";
import { type DriverHarness, testMachineId } from "../../../src/driver/testing.ts";

const AGENT_PORT = 49983;
const nativeDir = join(import.meta.dirname, "../../../native");
const runner = localRunner();

/** A server's worth of host for gVisor machines: an index, slots, an image, an agent. */
export class GvisorBench implements DriverHarness {
  readonly dir: string;
  readonly cgroupParent: string;
  readonly stateDir: string;
  readonly #claim: ServerClaim;
  readonly #slots: SlotPool;
  readonly #watcher = localWatcher();
  readonly #addresses = new Map<MachineId, string>();
  readonly #held: Slot[] = [];

  private constructor(dir: string, claim: ServerClaim, slots: SlotPool) {
    this.dir = dir;
    this.#claim = claim;
    this.#slots = slots;
    this.cgroupParent = `/aenv/${claim.index}`;
    this.stateDir = `/run/aenv/${claim.index}`;
  }

  static async open(): Promise<GvisorBench> {
    const rootfs = rootfsFromEnvironment();
    const dir = await mkdtemp(join(tmpdir(), "aenv-gvisor-"));
    for (const name of ["agent", "uppers", "points", "rootfs"]) mkdirSync(join(dir, name));
    await provideAgent(join(dir, "agent", "envd"));
    for (const name of [".aenv", "proc", "sys", "dev"]) mkdirSync(join(dir, "points", name));
    // What converting an image adds to it, and read-only as an image is.
    const layers = `lowerdir=${join(dir, "points")}:${rootfs}`;
    await runner.run(["mount", "-t", "overlay", "-o", layers, "none", join(dir, "rootfs")]);
    const onStale: Parameters<typeof claimServer>[0]["onStale"] = (network) => removeServerNetwork(runner, network);
    const claim = await claimServer({ dataDir: dir, onStale });
    const slots = createSlots({ runner, server: claim.network, log: silentLogger, ready: 1 });
    await slots.recover([]);
    return new GvisorBench(dir, claim, slots);
  }

  get uppersDir(): string {
    return join(this.dir, "uppers");
  }

  open(): Promise<Driver> {
    return this.#open(runner);
  }

  /** A driver that never hears of what it starts, and so undoes nothing: like one whose server is killed meanwhile. */
  openUnheard(): Promise<Driver> {
    return this.#open({
      run(argv, options) {
        const done = runner.run(argv, { ...options, check: false });
        return argv.includes("--detach") ? new Promise(() => {}) : done;
      },
    });
  }

  #open(runner: CommandRunner): Promise<Driver> {
    return createGvisorDriver({
      runscPath: fromEnvironment("AENV_TEST_RUNSC", "the path of a runsc, as `npm run up` builds one"),
      runner,
      watcher: this.#watcher,
      stateDir: this.stateDir,
      machinesDir: join(this.dir, "machines"),
      cgroupParent: this.cgroupParent,
      logger: silentLogger,
    });
  }

  async spec(resources: Resources): Promise<MachineSpec> {
    const id = testMachineId();
    const slot = await this.#slots.acquire({ internet: false });
    this.#held.push(slot);
    this.#addresses.set(id, `${slot.hostAddress}:${AGENT_PORT}`);
    return {
      id,
      resources,
      hostname: "under-test",
      rootfsDir: join(this.dir, "rootfs"),
      agentDir: join(this.dir, "agent"),
      upperDir: this.uppersDir,
      network: { netnsPath: slot.netnsPath, device: slot.device },
    };
  }

  agentAddress(spec: MachineSpec): string {
    const address = this.#addresses.get(spec.id);
    if (address === undefined) throw new Error(`${spec.id} is no machine of this test`);
    return address;
  }

  /** The machine's groups, in all hierarchies that limit something. */
  cgroupDirs(id: MachineId): string[] {
    const roots = isV1() ? ["memory", "cpu", "pids"].map((name) => `/sys/fs/cgroup/${name}`) : ["/sys/fs/cgroup"];
    return roots.map((root) => `${root}${this.cgroupParent}/${id}`);
  }

  readLimits(id: MachineId): { memoryBytes: number; cpuQuotaUsec: number; pidsMax: number } {
    const [memory = "", cpu = memory, pids = memory] = this.cgroupDirs(id);
    const number = (file: string): number => Number.parseInt(readFileSync(file, "utf8"), 10);
    return {
      memoryBytes: number(`${memory}/${isV1() ? "memory.limit_in_bytes" : "memory.max"}`),
      cpuQuotaUsec: number(`${cpu}/${isV1() ? "cpu.cfs_quota_us" : "cpu.max"}`),
      pidsMax: number(`${pids}/pids.max`),
    };
  }

  /** Kills the runsc commands for this machine; what they have started goes on. */
  killCommands(id: MachineId): void {
    for (const { pid, args } of this.processesOf(id)) {
      if (!args[0]?.startsWith("runsc-")) process.kill(pid, "SIGKILL");
    }
  }

  processesOf(id: MachineId): { readonly pid: number; readonly args: readonly string[] }[] {
    return readdirSync("/proc")
      .filter((name) => /^\d+$/.test(name))
      .map((name) => ({ pid: Number(name), args: commandLine(name) }))
      .filter(({ args }) => args.some((arg) => arg.endsWith(`/machines/${id}`)));
  }

  /** What the files of the machine's folder hold. */
  bytesOf(id: MachineId): number {
    const dir = join(this.dir, "machines", id);
    return readdirSync(dir).reduce((sum, name) => sum + lstatSync(join(dir, name)).size, 0);
  }

  leaveSocket(id: MachineId): void {
    writeFileSync(join(this.stateDir, "r", `runsc-${id}.sock`), "");
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#watcher.close();
    for (const slot of this.#held) await this.#slots.release(slot);
    await this.#slots.close({ remove: true });
    await this.#claim.release();
    await runner.run(["umount", join(this.dir, "rootfs")]);
    await rm(this.dir, { recursive: true });
  }
}

async function provideAgent(path: string): Promise<void> {
  const built = process.env.AENV_TEST_BIN_DIR;
  if (built !== undefined && existsSync(join(built, "envd"))) return copyFile(join(built, "envd"), path);
  // Go finds its caches by the environment of whoever runs the tests.
  const { PATH = "", HOME = "/root", GOPROXY = "" } = process.env;
  await runner.run(["go", "build", "-o", path, "./cmd/envd"], {
    cwd: nativeDir,
    env: { PATH, HOME, CGO_ENABLED: "0", ...(GOPROXY !== "" && { GOPROXY }) },
    timeoutMs: 300_000,
  });
}

function rootfsFromEnvironment(): string {
  const what = "a folder with a Debian root file system with python3: mkdir D && tar -xf root.tar -C D";
  const dir = fromEnvironment("AENV_TEST_ROOTFS", what);
  if (!existsSync(join(dir, "usr/bin/python3"))) throw new Error(`AENV_TEST_ROOTFS=${dir} is not ${what}`);
  return dir;
}

function fromEnvironment(name: string, what: string): string {
  const value = process.env[name];
  if (value === undefined || value === "") throw new Error(`${name} is not set: it has to be ${what}`);
  return value;
}

function isV1(): boolean {
  return !existsSync("/sys/fs/cgroup/cgroup.controllers");
}

function commandLine(pid: string): string[] {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "utf8").split("\0");
  } catch {
    return [];
  }
}
