import { existsSync, lstatSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Resources } from "#domain";
import type { Driver, MachineId, MachineSpec } from "#driver";
import { createGvisorDriver } from "#driver/gvisor";
import { silentLogger } from "#lib/log";
import { commandLine, processIds } from "#lib/proc";
import type { CommandRunner } from "#lib/run";
import { type DriverHarness, testMachineId } from "../../../src/driver/testing.ts";
import { fromEnvironment, MachineHost } from "../machines/host.ts";

/** gVisor's machines have nothing to do in a slot that waits. */
const NO_COMPANION = { prepare: async () => {}, unprepare: async () => {} };

/** A host for gVisor machines: an image, and the driver. */
export class GvisorBench implements DriverHarness {
  readonly #host: MachineHost;

  private constructor(host: MachineHost) {
    this.#host = host;
  }

  static async open(): Promise<GvisorBench> {
    const rootfs = rootfsFromEnvironment();
    const host = await MachineHost.open("gvisor", NO_COMPANION);
    for (const name of ["points", "rootfs"]) mkdirSync(join(host.dir, name));
    for (const name of [".aenv", "proc", "sys", "dev"]) mkdirSync(join(host.dir, "points", name));
    // What converting an image adds to it, and read-only as an image is.
    const layers = `lowerdir=${join(host.dir, "points")}:${rootfs}`;
    await host.runner.run(["mount", "-t", "overlay", "-o", layers, "none", join(host.dir, "rootfs")]);
    await host.start();
    return new GvisorBench(host);
  }

  get dir(): string {
    return this.#host.dir;
  }

  get cgroupParent(): string {
    return this.#host.cgroupParent;
  }

  get uppersDir(): string {
    return join(this.dir, "uppers");
  }

  open(): Promise<Driver> {
    return this.#open(this.#host.runner);
  }

  /** A driver that never hears of what it starts, and so undoes nothing: like one whose server is killed meanwhile. */
  openUnheard(): Promise<Driver> {
    const { runner } = this.#host;
    return this.#open({
      run(argv, options) {
        const done = runner.run(argv, { ...options, check: false });
        return argv.includes("--detach") ? new Promise(() => {}) : done;
      },
    });
  }

  #open(runner: CommandRunner): Promise<Driver> {
    return createGvisorDriver({
      runscPath: fromEnvironment("AENV_TEST_RUNSC"),
      sentrySavePath: join(fromEnvironment("AENV_TEST_BIN_DIR"), "sentrysave"),
      runner,
      watcher: this.#host.watcher,
      stateDir: this.#host.stateDir,
      machinesDir: join(this.dir, "machines"),
      uppersDir: this.uppersDir,
      cgroupParent: this.cgroupParent,
      logger: silentLogger,
    });
  }

  async spec(resources: Resources): Promise<MachineSpec> {
    const id = testMachineId();
    return {
      id,
      resources,
      hostname: "under-test",
      image: { dir: join(this.dir, "rootfs"), file: "/dev/null" },
      agentDir: this.#host.agentDir,
      network: await this.#host.network(id),
    };
  }

  agentAddress(spec: MachineSpec): string {
    return this.#host.agentAddress(spec);
  }

  cgroupDirs(id: MachineId): string[] {
    return this.#host.cgroupDirs(id);
  }

  readLimits(id: MachineId): { memoryBytes: number; cpuQuotaUsec: number; pidsMax: number } {
    const [memory = "", cpu = memory, pids = memory] = this.cgroupDirs(id);
    const number = (file: string): number => Number.parseInt(readFileSync(file, "utf8"), 10);
    const v1 = existsSync(`${memory}/memory.limit_in_bytes`);
    return {
      memoryBytes: number(`${memory}/${v1 ? "memory.limit_in_bytes" : "memory.max"}`),
      cpuQuotaUsec: number(`${cpu}/${v1 ? "cpu.cfs_quota_us" : "cpu.max"}`),
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
    return processIds()
      .map((pid) => ({ pid, args: commandLine(pid) }))
      .filter(({ args }) => args.some((arg) => arg.endsWith(`/machines/${id}`)));
  }

  /** What the host's kernel adds to the badness of the machine's processes that run this program of the guest's, each value once. The
   *  sandbox itself has mapped what its guest runs, too. */
  killScores(id: MachineId, program: string): number[] {
    const [memory = ""] = this.cgroupDirs(id);
    const pids = readFileSync(join(memory, "cgroup.procs"), "utf8").trim().split("\n").map(Number);
    const running = pids.filter(
      (pid) =>
        commandLine(pid)[0]?.startsWith("runsc-") !== true &&
        readFileSync(`/proc/${pid}/maps`, "utf8").includes(`/${program}\n`),
    );
    return [...new Set(running.map((pid) => Number(readFileSync(`/proc/${pid}/oom_score_adj`, "utf8"))))];
  }

  /** What the files of the machine's folder hold. */
  bytesOf(id: MachineId): number {
    const dir = join(this.dir, "machines", id);
    return readdirSync(dir).reduce((sum, name) => sum + lstatSync(join(dir, name)).size, 0);
  }

  leaveSocket(id: MachineId): void {
    writeFileSync(join(this.#host.stateDir, "r", `runsc-${id}.sock`), "");
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#host.runner.run(["umount", join(this.dir, "rootfs")]);
    await this.#host.close();
  }
}

function rootfsFromEnvironment(): string {
  const what = "a folder with a Debian root file system with python3: mkdir D && tar -xf root.tar -C D";
  const dir = fromEnvironment("AENV_TEST_ROOTFS");
  if (!existsSync(join(dir, "usr/bin/python3"))) throw new Error(`AENV_TEST_ROOTFS=${dir} is not ${what}`);
  return dir;
}
