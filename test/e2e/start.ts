import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { isMissing } from "#lib/files";
import { createApi } from "../../scripts/setup/api.ts";
import { dataDir } from "../../scripts/setup/data-dir.ts";
import { type ServerConfig, startServer } from "../../scripts/setup/server.ts";
import { baseSpec, makeTemplate } from "../../scripts/setup/template.ts";
import { removeServer } from "./remove.ts";

/** A whole server of this checkout, on a data folder and a port of its own, with the real template `base`. */
export interface TestServer {
  readonly url: string;
  readonly apiKey: string;
  readonly dataDir: string;
  readonly config: ServerConfig;
  /** Digest of the image that `base` is made from. */
  readonly baseImage: string;
  /** Process id of `keeper`, `blobd`, `aenvd` or `edge` as it is now. */
  pid(service: string): number;
  /** Kills a service with SIGKILL and waits until its successor (started by the keeper) is there. */
  killService(service: string): Promise<void>;
  /** Ends everything and removes all of it. */
  stop(): Promise<void>;
}

/** What `npm test` hands to the tests; says how to get it when it is missing. */
export function fromSetUp(name: string): string {
  const value = process.env[name];
  if (value === undefined || value === "") throw new Error(`${name} is not set: run these tests by \`npm test\``);
  return value;
}

/** Starts one; whoever does stops it. */
export async function startTestServer(): Promise<TestServer> {
  const path = mkdtempSync(join(tmpdir(), "aenv-e2e-"));
  const data = dataDir(path);
  const config: ServerConfig = {
    dataDir: path,
    listen: `127.0.0.1:${await freePort()}`,
    tlsListen: `127.0.0.1:${await freePort()}`,
    binDir: fromSetUp("AENV_TEST_BIN_DIR"),
    runscPath: fromSetUp("AENV_TEST_RUNSC"),
    commit: "test",
  };
  await startServer(data, config);
  const url = `http://${config.listen}`;
  const apiKey = readFileSync(data.keyFile, "utf8").trim();
  const baseImage = await makeTemplate(data, config, createApi(url, apiKey), baseSpec());
  const pid = (service: string): number => Number(readFileSync(data.pidFile(service), "utf8"));
  return {
    url,
    apiKey,
    dataDir: path,
    config,
    baseImage,
    pid,
    async killService(service) {
      const before = pid(service);
      process.kill(before, "SIGKILL");
      await until(`a new ${service}`, () => pid(service) !== before);
    },
    async stop() {
      await removeServer(data, createApi(url, apiKey));
      rmSync(path, { recursive: true, force: true });
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

/** A port that is free on the loopback now. */
export async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const address = server.address();
  await new Promise((resolve) => server.close(resolve));
  if (typeof address !== "object" || address === null) throw new Error("no port");
  return address.port;
}
