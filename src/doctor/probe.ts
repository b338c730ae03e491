import { constants } from "node:fs";
import { access, mkdtemp, readFile, rm, statfs, writeFile } from "node:fs/promises";
import { arch, release, tmpdir } from "node:os";
import { join } from "node:path";
import { type ExamineOptions, examineVirtualization } from "#driver";
import type { CommandRunner } from "#lib/run";
import { emptyErofsImage } from "./erofs-image.ts";
import type { Attempt, HostFacts, PortFacts, RunscFacts } from "./facts.ts";
import {
  availableMemoryBytes,
  cgroupFacts,
  droppingChains,
  foreignRoutes,
  isListening,
  openFilesLimit,
} from "./parse.ts";

export interface ProbeOptions extends ExamineOptions {
  readonly dataDir: string;
  readonly runscPath: string;
  readonly ports: readonly number[];
}

const COMMAND_TIMEOUT_MS = 10_000;
const SANDBOX_TIMEOUT_MS = 30_000;

/** Looks at the host and tries what sandboxes need. Leaves nothing behind. Never throws for what the host lacks. */
export async function probeHost(options: ProbeOptions): Promise<HostFacts> {
  const { runner, dataDir, runscPath, paths, ports } = options;
  const temp = await mkdtemp(join(tmpdir(), "aenv-doctor-"));
  try {
    const tools = new Tools(runner, temp);
    return {
      kernel: release(),
      arch: arch(),
      nodeVersion: process.versions.node,
      uid: process.getuid?.() ?? -1,
      cgroup: cgroupFacts(await text("/proc/self/mountinfo"), await text("/sys/fs/cgroup/cgroup.controllers")),
      programs: {
        ip: await tools.versionOf(["ip", "-Version"]),
        nft: await tools.versionOf(["nft", "--version"]),
        mount: await tools.versionOf(["mount", "--version"]),
        tc: await tools.versionOf(["tc", "-Version"]),
        mke2fs: await tools.versionOf(["sh", "-c", "mke2fs -V 2>&1"]),
      },
      namespaces: await tools.tryNamespace(),
      erofs: await tools.tryErofs(),
      runsc: await tools.runsc(runscPath),
      seccompActions: words(await text("/proc/sys/kernel/seccomp/actions_avail")),
      ptraceScope: number(await text("/proc/sys/kernel/yama/ptrace_scope")),
      virtualization: await examineVirtualization(options),
      firecracker: {
        firecracker: await tools.versionOf([paths.firecrackerPath, "--version"]),
        jailer: await tools.versionOf([paths.jailerPath, "--version"]),
      },
      tun: await isThere("/dev/net/tun"),
      fuse: await isThere("/dev/fuse"),
      ipForward: number(await text("/proc/sys/net/ipv4/ip_forward")) === 1,
      droppingChains: droppingChains(await tools.stdoutOf(["nft", "--json", "list", "ruleset"])),
      foreignRoutes: foreignRoutes(await tools.stdoutOf(["ip", "-json", "route", "show", "table", "all"])),
      dataDir,
      diskFreeBytes: await diskFreeBytes(dataDir),
      memoryAvailableBytes: availableMemoryBytes(await text("/proc/meminfo")),
      openFilesLimit: openFilesLimit(await text("/proc/self/limits")),
      ports: await portFacts(ports, dataDir),
      clockSynchronised: await isClockSynchronised(),
      nowMs: Date.now(),
    };
  } finally {
    await rm(temp, { recursive: true, force: true });
  }
}

async function portFacts(ports: readonly number[], dataDir: string): Promise<PortFacts[]> {
  const sockets = `${await text("/proc/net/tcp")}${await text("/proc/net/tcp6")}`;
  const byUs = await isOurEdge(dataDir);
  return ports.map((number) => ({ number, taken: isListening(sockets, number), byUs }));
}

/** The trials that run commands. */
class Tools {
  readonly #runner: CommandRunner;
  readonly #temp: string;

  constructor(runner: CommandRunner, temp: string) {
    this.#runner = runner;
    this.#temp = temp;
  }

  async versionOf(argv: readonly string[]): Promise<string | undefined> {
    return (await this.stdoutOf(argv)).split("\n")[0]?.split(/[,(]/)[0]?.trim() || undefined;
  }

  /** Empty when the command fails or cannot be started. */
  async stdoutOf(argv: readonly string[]): Promise<string> {
    try {
      const result = await this.#runner.run(argv, { timeoutMs: COMMAND_TIMEOUT_MS });
      return new TextDecoder().decode(result.stdout);
    } catch {
      return "";
    }
  }

  async tryNamespace(): Promise<Attempt> {
    const name = `aedoctor${process.pid}`;
    const rules = "table ip t { chain c { type nat hook postrouting priority 100; masquerade; }; }\n";
    const steps: readonly (readonly string[])[] = [
      ["ip", "netns", "add", name],
      ["ip", "-netns", name, "link", "add", "a0", "type", "veth", "peer", "name", "a1"],
      ["ip", "netns", "exec", name, "nft", "-f", "-"],
    ];
    const attempt = await this.#attempt(steps, rules);
    await this.stdoutOf(["ip", "netns", "delete", name]);
    return attempt;
  }

  async tryErofs(): Promise<Attempt> {
    const image = join(this.#temp, "empty.erofs");
    const target = await mkdtemp(join(this.#temp, "mount-"));
    await writeFile(image, emptyErofsImage());
    const attempt = await this.#attempt([["mount", "-t", "erofs", "-o", "ro", image, target]]);
    if (attempt.worked) await this.stdoutOf(["umount", target]);
    return attempt;
  }

  async runsc(path: string): Promise<RunscFacts> {
    const version = await this.versionOf([path, "--version"]);
    if (version === undefined)
      return { path, version, sandbox: { worked: false, reason: "there is no runsc to try it with" } };
    const flags = ["--root", join(this.#temp, "runsc"), "--network=none", "--platform=systrap", "--ignore-cgroups"];
    const sandbox = await this.#attempt([[path, ...flags, "do", "/bin/true"]]);
    return { path, version: version.replace(/^runsc version /, ""), sandbox };
  }

  /** Runs commands in order up to the first that fails. */
  async #attempt(steps: readonly (readonly string[])[], stdin = ""): Promise<Attempt> {
    try {
      for (const argv of steps) await this.#runner.run(argv, { timeoutMs: SANDBOX_TIMEOUT_MS, stdin });
      return { worked: true };
    } catch (error) {
      return { worked: false, reason: error instanceof Error ? error.message : String(error) };
    }
  }
}

async function diskFreeBytes(dataDir: string): Promise<number> {
  for (let path = dataDir; ; path = join(path, "..")) {
    try {
      const { bavail, bsize } = await statfs(path);
      return bavail * bsize;
    } catch (error) {
      if (path === "/") throw error;
    }
  }
}

/** True when the edge of this data folder's server runs. */
async function isOurEdge(dataDir: string): Promise<boolean> {
  const pid = number(await text(join(dataDir, "run", "edge.pid")));
  return pid !== undefined && (await isThere(`/proc/${pid}`));
}

async function isClockSynchronised(): Promise<boolean> {
  return (await isThere("/run/systemd/timesync/synchronized")) || (await isThere("/run/chrony/chronyd.pid"));
}

async function isThere(path: string): Promise<boolean> {
  return await access(path, constants.F_OK).then(
    () => true,
    () => false,
  );
}

/** Empty when there is no such file. */
async function text(path: string): Promise<string> {
  return await readFile(path, "utf8").catch(() => "");
}

function number(value: string): number | undefined {
  const parsed = Number.parseInt(value, 10);
  return Number.isNaN(parsed) ? undefined : parsed;
}

function words(value: string): readonly string[] {
  return value.split(/\s+/).filter((word) => word !== "");
}
