import {
  closeSync,
  existsSync,
  mkdirSync,
  openSync,
  readFileSync,
  renameSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { join, resolve } from "node:path";
import { isMissing } from "../../src/lib/files.ts";
import { commandLine, startTicks } from "../../src/lib/proc.ts";

/** Where a server keeps all it has. */
export const DEFAULT_DATA_DIR = "/var/lib/aenv";
export const DEFAULT_LISTEN = "127.0.0.1:8000";
export const SERVICES = ["blobd", "aenvd", "edge"] as const;

/** The files of a data folder that the scripts read and write. */
export interface DataDir {
  readonly path: string;
  readonly configFile: string;
  readonly keeperConfigFile: string;
  readonly keyFile: string;
  readonly keeperSocket: string;
  /** What a template of ours was last made from. */
  templateFile(name: string): string;
  pidFile(name: string): string;
  logFile(name: string): string;
}

export function dataDir(path: string): DataDir {
  const base = resolve(path);
  return {
    path: base,
    configFile: join(base, "config.json"),
    keeperConfigFile: join(base, "keeper.json"),
    keyFile: join(base, "api-key"),
    keeperSocket: join(base, "run", "keeper.sock"),
    templateFile: (name) => join(base, `${encodeURIComponent(name)}.json`),
    pidFile: (name) => join(base, "run", `${name}.pid`),
    logFile: (name) => join(base, "log", `${name}.log`),
  };
}

export function makeDataDir(data: DataDir): void {
  for (const dir of ["", "run", "log", "blobs"]) mkdirSync(join(data.path, dir), { recursive: true, mode: 0o700 });
}

export function readJson<T>(path: string): T | undefined {
  return existsSync(path) ? (JSON.parse(readFileSync(path, "utf8")) as T) : undefined;
}

/** Replaces a file as a whole. */
export function writeJson(path: string, value: unknown): void {
  const temp = `${path}.${process.pid}.tmp`;
  writeFileSync(temp, `${JSON.stringify(value, undefined, 2)}\n`, { mode: 0o600 });
  renameSync(temp, path);
}

/** The operator's API key; undefined before the first start. */
export function readKey(data: DataDir): string | undefined {
  return existsSync(data.keyFile) ? readFileSync(data.keyFile, "utf8").trim() : undefined;
}

/** Nobody but the owner can read the file at any moment. Throws when there is a key already. */
export function writeKey(data: DataDir, key: string): void {
  const file = openSync(data.keyFile, "wx", 0o600);
  try {
    writeSync(file, `${key}\n`);
  } finally {
    closeSync(file);
  }
}

export interface ProcessInfo {
  readonly pid: number;
  readonly uptimeS: number;
}

/** The pid that a file names; undefined when there is none, as between a service's end and its next start. */
export function pidIn(pidFile: string): number | undefined {
  try {
    return Number.parseInt(readFileSync(pidFile, "utf8"), 10) || undefined;
  } catch (error) {
    if (isMissing(error)) return undefined;
    throw error;
  }
}

/** The process a pid file names, when it is there and its command line names one of `words`. */
export function processOf(pidFile: string, words: readonly string[]): ProcessInfo | undefined {
  const pid = pidIn(pidFile);
  if (pid === undefined) return undefined;
  const command = commandLine(pid).join(" ");
  if (!words.some((word) => command.includes(word))) return undefined;
  const ticks = startTicks(pid);
  if (ticks === undefined) return undefined;
  const hostUptimeS = Number.parseFloat(readFileSync("/proc/uptime", "utf8"));
  return { pid, uptimeS: Math.max(0, hostUptimeS - Number(ticks) / 100) };
}

export function keeperProcess(data: DataDir): ProcessInfo | undefined {
  return processOf(data.pidFile("keeper"), [data.keeperConfigFile]);
}
