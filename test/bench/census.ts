import { lstatSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { ServerNetwork } from "#network";
import { openCgroups } from "../../src/driver/cgroup/index.ts";

/** How many things of a server there are on this host, kind by kind. */
export type Census = Readonly<Record<string, number>>;

export interface CensusOf {
  readonly dataDir: string;
  readonly keeperPid: number;
  readonly network: ServerNetwork;
}

/** In the data folder, these grow with what happened, in bounds of their own; of telemetry, what is kept of the ended. */
const GROWING = new Set(["log", "telemetry", "catalog.db", "catalog.db-wal", "catalog.db-shm"]);

export function takeCensus({ dataDir, keeperPid, network }: CensusOf): Census {
  const stateDir = `/run/aenv/${network.index}`;
  return {
    processes: descendants(keeperPid),
    mounts: mounts([dataDir, stateDir, `/run/netns/${network.prefix}-`]),
    namespaces: startingWith(readdirSync("/run/netns"), `${network.prefix}-`),
    links: startingWith(linkNames(), `${network.prefix}h`),
    cgroups: openCgroups(`/aenv/${network.index}`).list().length,
    files: files(dataDir, GROWING) + files(join(dataDir, "telemetry", "live")) + files(stateDir),
  };
}

/** What `now` has more of (or fewer) than `before`; empty when they are equal. */
export function differences(before: Census, now: Census): Record<string, number> {
  const changed = Object.entries(now).map(([kind, count]) => [kind, count - (before[kind] ?? 0)] as const);
  return Object.fromEntries(changed.filter(([, difference]) => difference !== 0));
}

/** The keeper adopts every orphan, so whatever a server has started is below it. Zombies count: somebody has to reap them. */
function descendants(root: number): number {
  const parents = new Map<number, number>();
  for (const name of readdirSync("/proc")) {
    const stat = /^\d+$/.test(name) ? readOrGone(`/proc/${name}/stat`) : undefined;
    if (stat !== undefined) parents.set(Number(name), Number(stat.slice(stat.lastIndexOf(")") + 2).split(" ")[1]));
  }
  const isBelow = (pid: number): boolean => {
    const parent = parents.get(pid);
    return parent !== undefined && (parent === root || isBelow(parent));
  };
  return [...parents.keys()].filter(isBelow).length;
}

function mounts(prefixes: readonly string[]): number {
  const points = readFileSync("/proc/self/mountinfo", "utf8").trim().split("\n");
  return points.filter((line) => prefixes.some((prefix) => line.split(" ")[4]?.startsWith(prefix))).length;
}

function linkNames(): string[] {
  const lines = readFileSync("/proc/net/dev", "utf8").split("\n").slice(2);
  return lines.map((line) => line.slice(0, line.indexOf(":")).trim());
}

function startingWith(names: readonly string[], prefix: string): number {
  return names.filter((name) => name.startsWith(prefix)).length;
}

/** Files and folders below a folder, not into what is mounted there. */
function files(dir: string, besides: ReadonlySet<string> = new Set(), device = lstatSync(dir).dev): number {
  let count = 0;
  for (const entry of readdirSync(dir, { withFileTypes: true })) {
    if (besides.has(entry.name)) continue;
    count += 1;
    if (!entry.isDirectory()) continue;
    const path = join(dir, entry.name);
    try {
      if (lstatSync(path).dev === device) count += files(path, undefined, device);
    } catch {
      // It has just been removed.
    }
  }
  return count;
}

function readOrGone(path: string): string | undefined {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return undefined;
  }
}
