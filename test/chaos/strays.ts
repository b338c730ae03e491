import { readdirSync, readFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { commandLine, processIds, startTicks } from "#lib/proc";
import { swapAreas } from "#lib/swap-files";
import { connectStore } from "#store";
import { dataPaths } from "../../src/config.ts";
import { indexOf } from "../e2e/host.ts";
import type { TestServer } from "../e2e/start.ts";
import { sandboxOf } from "./expectation.ts";

interface SandboxRow {
  readonly sandbox: { readonly id: string; readonly state: string; readonly snapshotId: string };
  readonly machineId: string;
  readonly imageDigest: string;
  readonly agentDigest: string;
  readonly checkpointOf?: string;
}

interface BuildRow {
  readonly id: string;
  readonly templateId: string;
  readonly status: string;
  readonly snapshot?: { readonly id: string; readonly imageDigest: string; readonly agentDigest: string };
}

interface TemplateRow {
  readonly id: string;
  readonly kind?: string;
  readonly tags: Readonly<Record<string, string>>;
}

/** What is in the catalog: sandboxes, the snapshots of builds, and what points to these. */
export interface Records {
  readonly sandboxes: readonly SandboxRow[];
  readonly builds: readonly BuildRow[];
  readonly templates: readonly TemplateRow[];
}

export function readRecords({ dataDir }: TestServer): Records {
  const catalog = new DatabaseSync(dataPaths(dataDir).catalog, { readOnly: true });
  try {
    const rows = (kind: string): unknown[] =>
      catalog
        .prepare("SELECT value FROM records WHERE kind = ?")
        .all(kind)
        .map((row) => JSON.parse(String(row.value)));
    return {
      sandboxes: rows("sandbox") as SandboxRow[],
      builds: rows("build") as BuildRow[],
      templates: rows("template") as TemplateRow[],
    };
  } finally {
    catalog.close();
  }
}

/** True when no operation is under way: nobody is on the way to another state, nor being copied. */
export function isAtRest({ dataDir }: TestServer, { sandboxes, builds }: Records): boolean {
  return (
    sandboxes.every(({ sandbox }) => sandbox.state === "running" || sandbox.state === "paused") &&
    builds.every(({ status }) => status !== "building") &&
    !readdirSync(join(dataDir, "checkpoints")).some((name) => name.startsWith("fork-"))
  );
}

/** Files, mounts, leases and processes of the server that belong to nothing it knows. What `assertNothingLost` counts is not
 *  looked at again. */
export async function strays(server: TestServer, records: Records): Promise<string[]> {
  return [
    ...strayFiles(server, records),
    ...straySnapshots(records),
    ...strayMounts(server, records),
    ...(await strayLeases(server, records)),
    ...strayProcesses(server),
  ];
}

/** Paths from the data folder on, and what has to be in each: all names that may be there. */
function strayFiles(server: TestServer, { sandboxes, builds }: Records): string[] {
  const { dataDir } = server;
  const snapshots = builds.flatMap(({ snapshot }) => snapshot ?? []);
  const machines = knownMachines(server, sandboxes);
  const checkpoints = sandboxes.flatMap(({ sandbox, checkpointOf }) =>
    sandbox.state === "paused" && checkpointOf !== undefined ? [checkpointOf] : [],
  );
  const images = [...sandboxes, ...snapshots].map(({ imageDigest }) => imageDigest.replace(/^.*:/, ""));
  const agents = [...sandboxes, ...snapshots].map(({ agentDigest }) => agentDigest);
  const expected: Readonly<Record<string, readonly string[] | RegExp>> = {
    ".": /^(api-key|catalog\.db(-wal|-shm)?|config\.json|keeper\.json|base\.json|tls|log|run|blobs|snapshots|checkpoints|telemetry|agents|machines|uppers|swap)$/,
    run: /^((keeper|blobd|aenvd|edge)\.pid|(keeper|blobd|aenvd|routes)\.sock|keeper\.(lock|services\.json|logs))$/,
    log: /^(keeper|blobd|aenvd|edge)\.log$/,
    tls: /^(authority|ca)\.pem$/,
    blobs: /^(lock|tmp|images|leases|mnt)$/,
    "blobs/tmp": [],
    "blobs/mnt": images,
    snapshots: snapshots.map(({ id }) => id),
    checkpoints,
    machines,
    uppers: machines,
    agents,
    swap: swapFiles(join(dataDir, "swap")),
  };
  const inside = [
    ...snapshots.map(({ id }) => `snapshots/${id}`),
    ...checkpoints.map((machine) => `checkpoints/${machine}`),
  ];
  const found: string[] = [];
  for (const [path, names] of Object.entries(expected)) {
    for (const name of namesIn(join(dataDir, path))) {
      const isKnown = names instanceof RegExp ? names.test(name) : names.includes(name);
      if (!isKnown) found.push(`file ${join(path, name)}`);
    }
  }
  for (const path of inside) {
    const names = namesIn(join(dataDir, path)).sort().join();
    if (names !== "manifest.json,state") found.push(`${path} holds ${names || "nothing"}`);
  }
  return found;
}

/** What runs or stands ready has one that runs; of a sandbox that is known it is the one of its record, of a clone there is no record. */
function knownMachines(server: TestServer, sandboxes: readonly SandboxRow[]): string[] {
  const recorded = new Map(sandboxes.map(({ sandbox, machineId }) => [sandbox.id, machineId]));
  return runningMachines(server).filter((id) => (recorded.get(sandboxOf(id) ?? "") ?? id) === id);
}

/** How many of these are clones, `assertNothingLost` compares with what the server says. */
function runningMachines(server: TestServer): string[] {
  const root = `--root=/run/aenv/${indexOf(server)}/r`;
  return processIds().flatMap((pid) => {
    const [program, ...args] = commandLine(pid);
    const isOurs = program === "runsc-sandbox" && args.includes(root);
    return isOurs ? args.filter((arg) => /^i[a-z0-9]{19}-[0-9a-f]{4}$/.test(arg)) : [];
  });
}

function swapFiles(dir: string): string[] {
  const areas = swapAreas(readFileSync("/proc/swaps", "utf8"));
  return areas.flatMap(({ path }) => (dirname(path) === dir ? [basename(path)] : []));
}

/** Captures of sandboxes that nothing points to and nobody was started from; older builds of templates wait for the next build. */
function straySnapshots({ sandboxes, builds, templates }: Records): string[] {
  return builds.flatMap(({ id, templateId, snapshot }) => {
    const template = templates.find((each) => each.id === templateId);
    const isNamed =
      template !== undefined && (template.kind !== "snapshot" || Object.values(template.tags).includes(id));
    const isUsed = sandboxes.some(({ sandbox }) => sandbox.snapshotId === snapshot?.id);
    return snapshot === undefined || isNamed || isUsed ? [] : [`snapshot ${snapshot.id} of build ${id}`];
  });
}

function strayMounts(server: TestServer, { sandboxes, builds }: Records): string[] {
  const images = new Set(
    [...sandboxes, ...builds.flatMap(({ snapshot }) => snapshot ?? [])].map(({ imageDigest }) =>
      join(server.dataDir, "blobs", "mnt", imageDigest.replace(/^.*:/, "")),
    ),
  );
  const state = `/run/aenv/${indexOf(server)}/`;
  const points = readFileSync("/proc/self/mountinfo", "utf8")
    .split("\n")
    .map((line) => line.split(" ")[4] ?? "")
    .filter((point) => point.startsWith(`${server.dataDir}/`) || point.startsWith(state));
  const once = new Set<string>();
  return points.flatMap((point) => {
    const isKnown = images.has(point) || point === `${state}r/null-netns`;
    const isDouble = once.has(point);
    once.add(point);
    return isKnown && !isDouble ? [] : [`mount ${point}`];
  });
}

async function strayLeases(server: TestServer, { sandboxes, builds }: Records): Promise<string[]> {
  const known = new Set([
    ...runningMachines(server).map((id) => `sandbox:${sandboxOf(id)}`),
    ...sandboxes.map(({ sandbox }) => `sandbox:${sandbox.id}`),
    ...builds.flatMap(({ snapshot }) => (snapshot === undefined ? [] : [`snapshot:${snapshot.id}`])),
  ]);
  const store = connectStore(dataPaths(server.dataDir).blobdSocket);
  try {
    return (await store.leases()).filter((lease) => !known.has(lease)).map((lease) => `lease ${lease}`);
  } finally {
    store.close();
  }
}

/** Whatever has the data folder or the runtime's in its command line, or is in a cgroup of the server, is a service, one of each,
 *  or a process of a machine (whose ids are compared elsewhere). Nothing of the keeper's is left unreaped. */
function strayProcesses(server: TestServer): string[] {
  const index = indexOf(server);
  const services = new Set(["keeper", "blobd", "aenvd", "edge"].map((name) => server.pid(name)));
  const keeper = server.pid("keeper");
  return processIds().flatMap((pid) => {
    if (services.has(pid) || pid === process.pid) return [];
    const args = commandLine(pid);
    const isMachines = ["runsc-sandbox", "runsc-gofer"].includes(args[0] ?? "") || inCgroupOf(pid, index);
    if (isMachines) return [];
    const isOurs = args.some((arg) => arg.includes(server.dataDir) || arg.includes(`/run/aenv/${index}/`));
    const isUnreaped = args.length === 1 && args[0] === "" && parentOf(pid) === keeper && startTicks(pid) === undefined;
    return isOurs || isUnreaped ? [`process ${pid} ${args.join(" ").slice(0, 200)}`] : [];
  });
}

function inCgroupOf(pid: number, index: number): boolean {
  return readOrNothing(`/proc/${pid}/cgroup`).includes(`/aenv/${index}/`);
}

function parentOf(pid: number): number {
  const stat = readOrNothing(`/proc/${pid}/stat`);
  return Number(stat.slice(stat.lastIndexOf(")") + 2).split(" ")[1]);
}

function readOrNothing(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return "";
  }
}

function namesIn(dir: string): string[] {
  try {
    return readdirSync(dir);
  } catch {
    return [];
  }
}
