import { readdir, rm } from "node:fs/promises";
import { basename } from "node:path";
import { isMissing } from "#lib/files";
import { commandLine, processIds } from "#lib/proc";
import type { CommandRunner } from "#lib/run";
import type { Cgroups } from "../cgroup/index.ts";
import type { MachineId } from "../driver.ts";
import { endProcesses } from "../end-processes.ts";
import { Bundle } from "./bundle.ts";
import type { Runsc } from "./runsc.ts";

/** All that a machine consists of on this host. */
export interface MachineParts {
  readonly runsc: Runsc;
  readonly cgroups: Cgroups;
  readonly machinesDir: string;
}

const RECORD = /^(.+)_sandbox:.+\.(?:state|lock)$/;
const SOCKET = /^runsc-(.+)\.sock$/;
const MOUNTS_MAX = 100;

/** Ids of all machines of which anything is left, whether runsc knows of it or not. */
export async function findLeftovers(parts: MachineParts): Promise<MachineId[]> {
  const ids = new Set<MachineId>(parts.cgroups.list());
  for (const name of await namesIn(parts.machinesDir)) ids.add(name);
  for (const name of await namesIn(parts.runsc.root)) {
    const id = (RECORD.exec(name) ?? SOCKET.exec(name))?.[1];
    if (id !== undefined) ids.add(id);
  }
  for (const id of runtimeProcesses(parts).values()) ids.add(id);
  return [...ids];
}

/** Removes all that is left of a machine; where its processes may be outside its cgroup, they are looked for by name too. */
export async function removeMachine(parts: MachineParts, id: MachineId, where: "cgroup" | "anywhere"): Promise<void> {
  if (where === "anywhere") {
    await endProcesses(`machine ${id}`, () =>
      [...runtimeProcesses(parts)].flatMap(([pid, of]) => (of === id ? [pid] : [])),
    );
  }
  await parts.cgroups.remove(id);
  for (const file of parts.runsc.files(id)) await rm(file, { force: true });
  await new Bundle(parts.machinesDir, id).remove();
}

/** Takes away all that is mounted on a path: the first machines of a root, when they start at the same time, mount it once each. */
export async function unmountWholly(runner: CommandRunner, path: string): Promise<void> {
  for (let left = MOUNTS_MAX; left > 0; left -= 1) {
    const { exitCode } = await runner.run(["umount", path], { check: false });
    if (exitCode !== 0) return;
  }
}

/** Sandboxes, gofers and runsc commands of this driver's root: pid → machine. All carry the folder of their bundle. */
function runtimeProcesses({ runsc, machinesDir }: MachineParts): Map<number, MachineId> {
  const found = new Map<number, MachineId>();
  for (const pid of processIds()) {
    const args = commandLine(pid);
    if (!runsc.owns(args)) continue;
    const id = machineOf(args, machinesDir);
    if (id !== undefined) found.set(pid, id);
  }
  return found;
}

/** The process that serves a machine's files. undefined: it has ended. */
export function goferOf(id: MachineId, { cgroups }: Pick<MachineParts, "cgroups">): number | undefined {
  return cgroups.processes(id).find((pid) => commandLine(pid)[0] === "runsc-gofer");
}

/** True when this pid is the sandbox process of this machine. */
export function isSandboxOf(pid: number, id: MachineId, { runsc, machinesDir }: MachineParts): boolean {
  const args = commandLine(pid);
  return args[0] === "runsc-sandbox" && runsc.owns(args) && machineOf(args, machinesDir) === id;
}

function machineOf(args: readonly string[], machinesDir: string): MachineId | undefined {
  const prefix = `--bundle=${machinesDir}/`;
  const position = args.indexOf("--bundle");
  const bundle = args.find((arg) => arg.startsWith(prefix)) ?? `--bundle=${args[position + 1]}`;
  return bundle.startsWith(prefix) ? basename(bundle) : undefined;
}

async function namesIn(dir: string): Promise<string[]> {
  try {
    return await readdir(dir);
  } catch (error) {
    if (isMissing(error)) return [];
    throw error;
  }
}
