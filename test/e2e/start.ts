import { randomInt } from "node:crypto";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { isMissing } from "#lib/files";
import { threadStates } from "#lib/proc";
import { createApi } from "../../scripts/setup/api.ts";
import { dataDir } from "../../scripts/setup/data-dir.ts";
import { type ServerConfig, startServer } from "../../scripts/setup/server.ts";
import { baseSpec, makeTemplate } from "../../scripts/setup/template.ts";
import { BaseImage } from "./base-image.ts";
import { removeServer } from "./remove.ts";

/** A whole server of this checkout, on a data folder and a port of its own, with the real template `base`. */
export interface TestServer {
  readonly url: string;
  readonly apiKey: string;
  readonly dataDir: string;
  readonly config: TestConfig;
  /** Digest of the image that `base` is made from. */
  readonly baseImage: string;
  /** Process id of `keeper`, `blobd`, `aenvd` or `edge` as it is now. */
  pid(service: string): number;
  /** Kills a service with SIGKILL and waits until it is gone; returns its process id. */
  endService(service: string): Promise<number>;
  /** The same, and waits until its successor (started by the keeper) is there. */
  killService(service: string): Promise<void>;
  /** Starts what does not run, as `npm run up` does. */
  restart(): Promise<void>;
  /** Ends everything and removes all of it. */
  stop(): Promise<void>;
}

/** Of a test's server; what it does not set is as for everybody. */
export interface TestConfig extends ServerConfig {
  readonly slotsReady?: number;
  readonly idleAfterMs?: number;
  readonly swapMaxMib?: number;
  readonly memoryBudgetMib?: number;
  readonly pausedRetentionHours?: number;
}

export interface TestServerOptions {
  /** A folder that is there, for the data folder; else a new one. */
  readonly path?: string;
  readonly settings?: Partial<TestConfig>;
  /** More of the environment of aenvd. */
  readonly env?: Readonly<Record<string, string>>;
}

/** Below Linux's range for the near end of connections: what is free here is not taken by the next of those. */
const LISTEN_PORTS = { from: 10_000, to: 32_000 };

/** What `npm test` hands to the tests; says how to get it when it is missing. */
export function fromSetUp(name: string): string {
  const value = process.env[name];
  if (value === undefined || value === "") throw new Error(`${name} is not set: run these tests by \`npm test\``);
  return value;
}

/** Starts one; whoever does stops it. */
export async function startTestServer(options: TestServerOptions = {}): Promise<TestServer> {
  const { path = mkdtempSync(join(tmpdir(), "aenv-e2e-")), env = {} } = options;
  const data = dataDir(path);
  const config: TestConfig = {
    dataDir: path,
    listen: `127.0.0.1:${await freePort()}`,
    tlsListen: `127.0.0.1:${await freePort()}`,
    binDir: fromSetUp("AENV_TEST_BIN_DIR"),
    runscPath: fromSetUp("AENV_TEST_RUNSC"),
    commit: "test",
    ...options.settings,
  };
  const image = new BaseImage(config.binDir);
  const digest = await image.lendTo(path);
  await startServer(data, config, env);
  const api = createApi(`http://${config.listen}`, readFileSync(data.keyFile, "utf8").trim());
  try {
    const baseImage = await makeTemplate(data, config, api, { ...baseSpec(), ...(digest !== undefined && { digest }) });
    if (digest === undefined) await image.keep(path, baseImage);
    else await image.letGo(path);
    return runningTestServer({ config, baseImage }, env);
  } catch (error) {
    await removeServer(data, api);
    throw error;
  }
}

/** One that has been started, perhaps by another process. */
export function runningTestServer(
  { config, baseImage }: Pick<TestServer, "config" | "baseImage">,
  env?: Readonly<Record<string, string>>,
): TestServer {
  const data = dataDir(config.dataDir);
  const url = `http://${config.listen}`;
  const apiKey = readFileSync(data.keyFile, "utf8").trim();
  const pid = (service: string): number => Number(readFileSync(data.pidFile(service), "utf8"));
  const endService = async (service: string): Promise<number> => {
    const ended = pid(service);
    process.kill(ended, "SIGKILL");
    // All of its threads: each holds its connections open.
    await until(`the end of ${service}`, () => threadStates(ended).length === 0);
    return ended;
  };
  return {
    url,
    apiKey,
    dataDir: data.path,
    config,
    baseImage,
    pid,
    endService,
    async killService(service) {
      const ended = await endService(service);
      await until(`a new ${service}`, () => pid(service) !== ended);
    },
    async restart() {
      await startServer(data, config, env);
    },
    async stop() {
      await removeServer(data, createApi(url, apiKey));
      rmSync(data.path, { recursive: true, force: true });
    },
  };
}

/** Waits for a condition; says what did not come true. A file that is missing (the pid of a service between its end and its next
 *  start) is a condition that has not come true yet. */
export async function until(
  what: string,
  condition: () => boolean | Promise<boolean>,
  deadlineMs = 30_000,
): Promise<void> {
  const giveUpAtMs = Date.now() + deadlineMs;
  const holds = async (): Promise<boolean> => {
    try {
      return await condition();
    } catch (error) {
      if (isMissing(error)) return false;
      throw error;
    }
  };
  while (!(await holds())) {
    if (Date.now() > giveUpAtMs) throw new Error(`${what} did not come within ${deadlineMs} ms`);
    await sleep(25);
  }
}

/** A port that is free on the loopback now, and not one of those that connections are given. */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = randomInt(LISTEN_PORTS.from, LISTEN_PORTS.to);
    const server = createServer();
    const isFree = await new Promise<boolean>((resolve) => {
      server.once("error", () => resolve(false)).listen(port, "127.0.0.1", () => resolve(true));
    });
    if (!isFree) continue;
    await new Promise((resolve) => server.close(resolve));
    return port;
  }
}
