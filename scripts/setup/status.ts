import { existsSync } from "node:fs";
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { createApi, serverVersion } from "./api.ts";
import { cacheDir } from "./cache.js";
import {
  type DataDir,
  DEFAULT_DATA_DIR,
  DEFAULT_LISTEN,
  dataDir,
  keeperProcess,
  processOf,
  readJson,
  readKey,
  SERVICES,
} from "./data-dir.ts";
import { ensureRoot } from "./elevate.ts";
import { keptServices } from "./keeper.ts";
import { output } from "./run.ts";
import { type ServerConfig, serverUrl } from "./server.ts";
import { say } from "./steps.ts";

const USAGE = `npm run status [-- OPTIONS]: processes, ports, logs and disk of the server. Exit code 0 when it answers, 3 when not.

  --data-dir DIR   of the server (default ${DEFAULT_DATA_DIR})
  --json           as one JSON object`;

const { values } = parseArgs({
  options: {
    "data-dir": { type: "string", default: DEFAULT_DATA_DIR },
    json: { type: "boolean", default: false },
    help: { type: "boolean", default: false },
  },
});

interface ProcessStatus {
  readonly name: string;
  readonly pid: number | null;
  readonly uptimeS: number | null;
  readonly restarts: number | null;
  readonly logFile: string;
}

interface Status {
  readonly url: string;
  /** What the server says it is; null while it does not answer. */
  readonly version: string | null;
  readonly dataDir: string;
  readonly processes: readonly ProcessStatus[];
  /** Null while the server does not answer. */
  readonly sandboxes: { readonly running: number; readonly paused: number } | null;
  /** Folder → bytes on disk. */
  readonly diskBytes: Readonly<Record<string, number>>;
}

if (values.help) {
  say(USAGE);
} else {
  const status = await readStatus(dataDir(values["data-dir"]));
  say(values.json ? JSON.stringify(status, undefined, 2) : describe(status));
  process.exitCode = status.version === null ? 3 : 0;
}

async function readStatus(data: DataDir): Promise<Status> {
  if (await isForbidden(data.path)) await ensureRoot(`to look into ${data.path}`);
  const url = serverUrl({ listen: readJson<ServerConfig>(data.configFile)?.listen ?? DEFAULT_LISTEN });
  const version = (await serverVersion(url)) ?? null;
  return {
    url,
    version,
    dataDir: data.path,
    processes: await processes(data),
    sandboxes: version === null ? null : await countSandboxes(data, url),
    diskBytes: await diskBytes([
      ...["blobs", "snapshots", "checkpoints", "machines", "agents", "log"].map((name) => join(data.path, name)),
      cacheDir(),
    ]),
  };
}

async function isForbidden(path: string): Promise<boolean> {
  const denied = (error: NodeJS.ErrnoException): boolean => error.code === "EACCES";
  return await readdir(path).then(() => false, denied);
}

async function processes(data: DataDir): Promise<readonly ProcessStatus[]> {
  const kept = await keptServices(data);
  return ["keeper", ...SERVICES].map((name) => {
    const found = name === "keeper" ? keeperProcess(data) : processOf(data.pidFile(name), [data.path]);
    return {
      name,
      pid: found?.pid ?? null,
      uptimeS: found === undefined ? null : Math.round(found.uptimeS),
      restarts:
        kept.find((service) => service.name === name)?.restarts ?? (name === "keeper" || kept.length === 0 ? null : 0),
      logFile: data.logFile(name),
    };
  });
}

async function countSandboxes(data: DataDir, url: string): Promise<Status["sandboxes"]> {
  const key = readKey(data);
  if (key === undefined) return null;
  const api = createApi(url, key);
  return { running: (await api.sandboxes("running")).length, paused: (await api.sandboxes("paused")).length };
}

async function diskBytes(folders: readonly string[]): Promise<Record<string, number>> {
  const present = folders.filter((folder) => existsSync(folder));
  const { stdout } = await output(["du", "--summarize", "--one-file-system", "--block-size=1", ...present], {
    timeoutMs: 20_000,
  });
  const entries = stdout.split("\n").flatMap((line) => {
    const [bytes, folder] = line.split("\t");
    return folder === undefined ? [] : [[folder, Number(bytes)] as const];
  });
  return Object.fromEntries(entries);
}

function describe({ url, version, dataDir: path, processes: all, sandboxes, diskBytes: disk }: Status): string {
  const rows = all.map(({ name, pid, uptimeS, restarts, logFile }) => {
    const state = pid === null ? "not running" : `pid ${pid}, up ${describeUptime(uptimeS ?? 0)}`;
    const again = restarts ? `, restarts ${restarts}` : "";
    return `  ${name.padEnd(7)} ${`${state}${again}`.padEnd(40)} ${logFile}`;
  });
  const counted = sandboxes === null ? "not known" : `${sandboxes.running} running, ${sandboxes.paused} paused`;
  return [
    version === null ? `The server does not answer at ${url}` : `Server at ${url}, build ${version}`,
    ...rows,
    `  sandboxes: ${counted}`,
    `  data: ${path}`,
    "  disk:",
    ...Object.entries(disk).map(([folder, bytes]) => `    ${(bytes / 1e6).toFixed(0).padStart(8)} MB  ${folder}`),
  ].join("\n");
}

function describeUptime(seconds: number): string {
  const [days, hours, minutes] = [
    Math.floor(seconds / 86_400),
    Math.floor(seconds / 3600) % 24,
    Math.floor(seconds / 60) % 60,
  ];
  if (days > 0) return `${days} d ${hours} h`;
  return hours > 0 ? `${hours} h ${minutes} min` : `${minutes} min ${seconds % 60} s`;
}
