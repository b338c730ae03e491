import { createHash } from "node:crypto";
import { existsSync, readFileSync, readlinkSync, realpathSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { isDeepStrictEqual } from "node:util";
import { completeConfig, dataPaths, splitListen, tlsListenOf } from "../../src/config.ts";
import { connectKeeper } from "../../src/lib/keeper.ts";
import { commandLine, environment } from "../../src/lib/proc.ts";
import { startDetached } from "../../src/lib/spawn.ts";
import { serverVersion } from "./api.ts";
import { cacheDir } from "./cache.js";
import {
  type DataDir,
  DEFAULT_LISTEN,
  keeperProcess,
  makeDataDir,
  pidIn,
  readJson,
  SERVICES,
  writeJson,
} from "./data-dir.ts";
import { firecrackerPaths, type VirtualizationConfig } from "./firecracker.ts";
import { binDir, runscPath } from "./go.ts";
import { root } from "./node.js";
import { buildVersion } from "./version.ts";

/** What the scripts set of src/config.ts's fields in <data>/config.json; others may be in it, and are kept. */
export interface ServerConfig extends VirtualizationConfig {
  readonly dataDir: string;
  readonly listen: string;
  readonly tlsListen?: string;
  readonly binDir: string;
  readonly runscPath: string;
  /** Of this build; shown by GET /version. */
  readonly commit: string;
}

interface KeeperConfig {
  readonly socket: string;
  readonly runDir: string;
  readonly lockFile: string;
  readonly logFile: string;
  readonly version: string;
  readonly services: readonly Service[];
}

interface Service {
  readonly name: string;
  readonly argv: readonly string[];
  readonly env: Readonly<Record<string, string>>;
  readonly cwd: string;
  readonly logFile: string;
  readonly pidFile: string;
}

export type StartOutcome = "already running" | "started" | "replaced an older build";

const HEALTH_TIMEOUT_MS = 60_000;
/** Longer than the 10 s that the keeper gives a service to end. */
const REPLACE_TIMEOUT_MS = 12_000;

/** What the operator asks for when starting the server; undefined leaves it as it was. */
export interface Wishes {
  readonly port: number | undefined;
  readonly virtualization: ServerConfig["virtualization"] | undefined;
}

/** What the configuration would say of virtualization; for knowing what to set up before the rest of it can be known. */
export function wantedVirtualization(data: DataDir, { virtualization }: Wishes): VirtualizationConfig {
  const present = readJson<Partial<ServerConfig>>(data.configFile) ?? {};
  return virtualization === undefined ? present : { ...present, virtualization };
}

/** The configuration this checkout's server would have; what the operator set in an existing one stays. */
export async function wantedConfig(data: DataDir, wishes: Wishes): Promise<ServerConfig> {
  const present = readJson<Partial<ServerConfig>>(data.configFile) ?? {};
  const { port } = wishes;
  const virtualization = wantedVirtualization(data, wishes);
  return {
    ...present,
    ...virtualization,
    ...(await firecrackerPaths(virtualization)),
    dataDir: data.path,
    listen: port === undefined ? (present.listen ?? DEFAULT_LISTEN) : `127.0.0.1:${port}`,
    binDir: await binDir(),
    runscPath: await runscPath(),
    commit: await buildVersion(),
  };
}

/** How clients reach this server by names; undefined without TLS. */
export function tlsOf(fields: ServerConfig): Tls | undefined {
  const config = completeConfig({ ...fields });
  const listen = tlsListenOf(config);
  if (listen === undefined) return undefined;
  const { host, port } = splitListen(listen);
  // The only address that is known here: others are the operator's to name.
  const address = host === "0.0.0.0" || host === "::" ? "127.0.0.1" : host;
  const authority = config.tlsCertPath === null ? dataPaths(config.dataDir).tlsAuthority : undefined;
  return { domain: config.domain, port, address, authority };
}

/** The name, port and address of the edge with TLS, and the certificate to trust where it is the server's own. */
export interface Tls {
  readonly domain: string;
  readonly port: number;
  readonly address: string;
  readonly authority: string | undefined;
}

export function serverUrl(config: Pick<ServerConfig, "listen">): string {
  return `http://${config.listen.replace(/^0\.0\.0\.0:/, "127.0.0.1:")}`;
}

/**
 * Makes the server of this data folder run this configuration, and returns once all of its services do and it answers. One that
 * already does is left alone; with another one the services are replaced, while the keeper and the sandboxes it holds run on.
 * `env`: more of it for aenvd.
 */
export async function startServer(
  data: DataDir,
  config: ServerConfig,
  env: Readonly<Record<string, string>> = {},
): Promise<StartOutcome> {
  makeDataDir(data);
  const keeperConfig = keeperConfigFor(data, config, env);
  const alive = keeperProcess(data);
  const unchanged =
    isDeepStrictEqual(readJson(data.configFile), config) &&
    isDeepStrictEqual(readJson(data.keeperConfigFile), keeperConfig);
  const isUp = alive && unchanged && keeperConfig.services.every(runsAsDefined);
  if (isUp && (await serverVersion(serverUrl(config))) === config.commit) return "already running";

  writeJson(data.configFile, config);
  writeJson(data.keeperConfigFile, keeperConfig);
  if (alive && keeperOf(alive.pid) !== realpathSync(join(config.binDir, "keeper")))
    await replaceKeeper(alive.pid, data, config);
  else if (alive) process.kill(alive.pid, "SIGHUP");
  else startKeeper(data, config);
  await waitForServer(data, config, keeperConfig.services);
  return alive ? "replaced an older build" : "started";
}

function keeperConfigFor(data: DataDir, config: ServerConfig, env: Readonly<Record<string, string>>): KeeperConfig {
  const settings = createHash("sha256").update(JSON.stringify(config)).digest("hex").slice(0, 16);
  // Stripping types and compiling takes most of a start: it is done once, and not again when a killed server comes back.
  const compiled = { NODE_COMPILE_CACHE: join(cacheDir(), "compile-server") };
  const server = { AENV_BUILD: config.commit, AENV_SETTINGS: settings, ...compiled, ...env };
  const service = (name: string, argv: readonly string[], env: Record<string, string> = {}): Service => ({
    name,
    argv,
    env: { ...inheritedEnv(), ...env },
    cwd: root,
    logFile: data.logFile(name),
    pidFile: data.pidFile(name),
  });
  const blobd = {
    "-data": join(data.path, "blobs"),
    "-socket": join(data.path, "run", "blobd.sock"),
    "-keeper-of": data.path,
  };
  // Build and settings are in the environment of what is run from source, so that another build, or another value in
  // config.json, is another definition to the keeper; the paths of the others name their build.
  return {
    socket: data.keeperSocket,
    runDir: join(data.path, "run"),
    lockFile: join(data.path, "run", "keeper.lock"),
    logFile: data.logFile("keeper"),
    version: config.commit,
    services: [
      service("blobd", [join(config.binDir, "blobd"), ...Object.entries(blobd).flat()]),
      service("aenvd", [process.execPath, join(root, "src", "aenvd.ts"), "serve", "--config", data.configFile], server),
      service("edge", [join(config.binDir, "edge"), ...edgeFlags(config)]),
    ],
  };
}

/** False too for a process that is about to be replaced, though it answers. */
function runsAsDefined({ argv, env, pidFile }: Service): boolean {
  const pid = pidIn(pidFile);
  if (pid === undefined || !isDeepStrictEqual(commandLine(pid), argv)) return false;
  // Without a PATH the keeper gives its own.
  const its = environment(pid).filter((entry) => env.PATH !== undefined || !entry.startsWith("PATH="));
  const wanted = Object.entries(env).map(([name, value]) => `${name}=${value}`);
  return isDeepStrictEqual(its.sort(), wanted.sort());
}

/** The edge reads no configuration file: what it needs to know is in its flags. */
function edgeFlags(fields: ServerConfig): string[] {
  const config = completeConfig({ ...fields });
  const { dataDir, listen, domain, tlsCertPath, tlsKeyPath } = config;
  const tlsListen = tlsListenOf(config);
  const own = tlsCertPath === null || tlsKeyPath === null ? [] : ["-tls-cert", tlsCertPath, "-tls-key", tlsKeyPath];
  const isAsked = config.tlsListen !== null || own.length > 0;
  const tls = tlsListen === undefined ? [] : ["-tls-listen", tlsListen, ...(isAsked ? own : ["-tls-optional"])];
  return ["-data", dataDir, "-listen", listen, "-domain", domain, ...tls];
}

/** What the services get of our environment: where programs, credentials of registries, proxies and certificates are found. */
function inheritedEnv(): Record<string, string> {
  const names = [
    "PATH",
    "HOME",
    "DOCKER_CONFIG",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "NODE_EXTRA_CA_CERTS",
  ];
  const both = names.flatMap((name) => (name.endsWith("PROXY") ? [name, name.toLowerCase()] : [name]));
  return Object.fromEntries(
    both.flatMap((name) => (process.env[name] === undefined ? [] : [[name, process.env[name]]])),
  );
}

/** It outlives this script. A start that fails is said by waitForServer, with the log. */
function startKeeper(data: DataDir, config: ServerConfig): void {
  startDetached([join(config.binDir, "keeper"), "-config", data.keeperConfigFile], data.logFile("keeper"));
}

/** The program a process runs; undefined when it has ended. */
function keeperOf(pid: number): string | undefined {
  try {
    return readlinkSync(`/proc/${pid}/exe`);
  } catch {
    return undefined;
  }
}

/** Services and sandboxes outlive their keeper, so a keeper of another build goes at once, and its successor takes them up. */
async function replaceKeeper(pid: number, data: DataDir, config: ServerConfig): Promise<void> {
  process.kill(pid, "SIGKILL");
  while (keeperOf(pid) !== undefined) await sleep(20);
  startKeeper(data, config);
}

async function waitForServer(data: DataDir, config: ServerConfig, services: readonly Service[]): Promise<void> {
  const address = serverUrl(config);
  const startedAtMs = Date.now();
  let isHelped = false;
  let wrong = "";
  while (Date.now() < startedAtMs + HEALTH_TIMEOUT_MS) {
    const others = services.filter((service) => !runsAsDefined(service)).map(({ name }) => name);
    const seen = others.length === 0 ? await serverVersion(address) : undefined;
    if (seen === config.commit) return;
    if (others.length > 0) wrong = `does not run ${others.join(", ")} as configured`;
    else
      wrong = seen === undefined ? `does not answer at ${address}` : `answers as build ${seen}, not ${config.commit}`;
    if (others.length > 0 && !isHelped && Date.now() > startedAtMs + REPLACE_TIMEOUT_MS) {
      isHelped = true;
      await restart(data, others);
    }
    await sleep(100);
  }
  throw new Error(`The server ${wrong} after ${HEALTH_TIMEOUT_MS / 1000} s.\n${logTails(data)}`);
}

/** A keeper that died while it replaced a service may have left its successor in the belief that it had. */
async function restart(data: DataDir, services: readonly string[]): Promise<void> {
  const keeper = connectKeeper(data.keeperSocket);
  try {
    for (const name of services) await keeper.restartService(name);
  } catch {
    // What it says is in its log, which is shown when nothing else helps.
  } finally {
    await keeper.close();
  }
}

function logTails(data: DataDir): string {
  return ["keeper", ...SERVICES]
    .map((name) => data.logFile(name))
    .filter((path) => existsSync(path))
    .map((path) => `--- ${path}\n${tail(path)}`)
    .join("\n");
}

function tail(path: string): string {
  return readFileSync(path, "utf8").trimEnd().split("\n").slice(-12).join("\n");
}
