import { readFileSync, statfsSync, writeFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { AenvError, type Resources } from "#domain";
import { hasCode, isGone } from "#lib/files";
import { readText, removeDir, subdirs } from "./files.ts";
import { type CgroupMemory, type CgroupStats, type CgroupVersion, CPU_PERIOD_USEC, type Limits } from "./limits.ts";
import { V1Hierarchies } from "./v1.ts";
import { V2Hierarchy } from "./v2.ts";

const PAGE_BYTES = 4096;
const REMOVE_TIMEOUT_MS = 10_000;
const CGROUP2_MAGIC = 0x63677270;

/**
 * The groups of one server's machines, all below one parent. The files are the kernel's, in memory: they are read and
 * written synchronously, which is quicker than handing each to a thread.
 */
export class Cgroups {
  readonly #version: CgroupVersion;
  readonly #parent: string;

  /** `parent`: path from the roots of the hierarchies, `/aenv/0`. */
  constructor(version: CgroupVersion, parent: string) {
    this.#version = version;
    this.#parent = parent;
  }

  /** The path to tell the runtime, which then joins the group instead of making one. */
  path(id: string): string {
    return `${this.#parent}/${id}`;
  }

  /** Makes the machine's group with its limits in force. A group left behind under this name is emptied and removed first.
   *  Errors: internal, when the kernel did not take a limit; then nothing is left. */
  async create(id: string, resources: Resources): Promise<void> {
    await this.make(id);
    try {
      this.limit(id, resources);
    } catch (error) {
      await this.remove(id);
      throw error;
    }
  }

  /** Makes a group that has no limits yet. One left behind under this name is emptied and removed first. */
  async make(id: string): Promise<void> {
    const path = this.path(id);
    try {
      this.#version.make(path);
    } catch (error) {
      if (!hasCode(error, "EEXIST")) throw error;
      await this.remove(id);
      this.#version.make(path);
    }
  }

  /** Errors: internal, when the kernel did not take a limit. */
  limit(id: string, resources: Resources): void {
    const path = this.path(id);
    const wrong = this.#version.fill(path, limitsOf(resources)).find(({ wanted, found }) => wanted !== found);
    if (wrong === undefined) return;
    throw new AenvError("internal", `${wrong.file} holds "${wrong.found}" after "${wrong.wanted}" was written to it`, {
      hint: "a machine without its limits is not started; check what else manages this host's cgroups",
    });
  }

  /** Puts a process that runs already into the group, with all its threads. What it starts is in there too. The kernel takes
   *  some milliseconds for it: all forks on the host wait meanwhile. */
  join(id: string, pid: number): void {
    for (const dir of this.#version.dirs(this.path(id))) writeFileSync(`${dir}/cgroup.procs`, String(pid));
  }

  /** Throws ENOENT when the group is not there. */
  stats(id: string): CgroupStats {
    return this.#version.stats(this.path(id));
  }

  /** What the group uses of this limit, which its memory and what of it is in swap share from then on. undefined: the group is
   *  not there. */
  memory(id: string, limitBytes: number): CgroupMemory | undefined {
    try {
      this.#version.share(this.path(id), wholePages(limitBytes));
      return this.#version.memory(this.path(id));
    } catch (error) {
      if (isGone(error)) return undefined;
      throw error;
    }
  }

  /** Sets the limit that memory and what of it is in swap share. False: more is in use, or the group is not there; no process is ended
   *  for it. */
  limitMemory(id: string, limitBytes: number): boolean {
    try {
      return this.#version.limitMemory(this.path(id), wholePages(limitBytes));
    } catch (error) {
      if (isGone(error)) return false;
      throw error;
    }
  }

  /** Moves what the machine holds out of memory, as far as the host has swap for it; returns how much went. Nothing is lost:
   *  what is touched comes back by itself. For both to share a limit, `memory` is to be called afterwards, and while the machine
   *  runs. */
  async reclaim(id: string): Promise<number> {
    const path = this.path(id);
    const before = this.#version.stats(path).memoryBytes;
    await this.#version.reclaim(path);
    return Math.max(0, before - this.#version.stats(path).memoryBytes);
  }

  /** Pids in the group. Those of a machine that is starting join one hierarchy after another, and may not all be among them yet. Empty
   *  when it is not there. */
  processes(id: string): number[] {
    const [dir = ""] = this.#version.dirs(this.path(id));
    return pidsIn(dir);
  }

  /** Sends SIGKILL to every process that is in the group now, and returns how many: none of them goes back to its program. The kernel
   *  may take a while to end them, and what one has begun meanwhile is not among them. */
  kill(id: string): number {
    const pids = this.processes(id);
    for (const pid of pids) killQuietly(pid);
    return pids.length;
  }

  /** Ends every process of the group and removes it. Repeatable. Errors: internal, when processes do not go away. */
  async remove(id: string): Promise<void> {
    const giveUpAtMs = performance.now() + REMOVE_TIMEOUT_MS;
    for (let waitMs = 1; !(await this.#removeNow(id)); waitMs = Math.min(waitMs * 2, 100)) {
      if (performance.now() > giveUpAtMs) {
        const left = this.#processesAnywhere(id);
        throw new AenvError("internal", `cgroup ${this.path(id)} is still busy after ${REMOVE_TIMEOUT_MS} ms`, {
          hint: left.length > 0 ? `processes ${left.join(", ")} do not end` : "another program holds groups below it",
        });
      }
      await sleep(waitMs);
    }
  }

  async #removeNow(id: string): Promise<boolean> {
    // Before they have ended no hierarchy lets the group go: one is asked until then, not all.
    if (this.kill(id) > 0) return false;
    // All are tried, so that one that is busy does not keep the others.
    if ((await Promise.all(this.#version.dirs(this.path(id)).map(removeDir))).every(Boolean)) return true;
    for (const pid of this.#processesAnywhere(id)) killQuietly(pid);
    return false;
  }

  /** In whichever hierarchy. */
  #processesAnywhere(id: string): readonly number[] {
    return [...new Set(this.#version.dirs(this.path(id)).flatMap(pidsIn))];
  }

  /** Names of all groups below the parent, in whichever hierarchy. */
  list(): string[] {
    const names = new Set<string>();
    for (const dir of this.#version.dirs(this.#parent)) {
      for (const name of subdirs(dir)) names.add(name);
    }
    return [...names];
  }

  /** Removes the parent, where nothing is left below it. */
  async removeParent(): Promise<void> {
    await Promise.all(this.#version.dirs(this.#parent).map(removeDir));
  }
}

/** The hierarchies of this host, as runsc finds them: version 2 only where it is mounted as the root of all of them. */
export function openCgroups(parent: string): Cgroups {
  if (statfsSync("/sys/fs/cgroup").type === CGROUP2_MAGIC)
    return new Cgroups(new V2Hierarchy("/sys/fs/cgroup"), parent);
  return new Cgroups(V1Hierarchies.parse(readFileSync("/proc/self/mountinfo", "utf8")), parent);
}

function limitsOf(resources: Resources): Limits {
  return {
    memoryBytes: wholePages(resources.memoryBytes),
    cpuQuotaUsec: Math.round(resources.vcpus * CPU_PERIOD_USEC),
    pidsMax: resources.pidsMax,
  };
}

function wholePages(bytes: number): number {
  return Math.floor(bytes / PAGE_BYTES) * PAGE_BYTES;
}

function pidsIn(dir: string): number[] {
  const text = readText(`${dir}/cgroup.procs`) ?? "";
  return text === "" ? [] : text.split("\n").map(Number);
}

function killQuietly(pid: number): void {
  try {
    process.kill(pid, "SIGKILL");
  } catch {
    // It ended by itself.
  }
}
