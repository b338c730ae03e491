import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";
import { type Api, createApi, serverVersion } from "./api.ts";
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
import { type ServerConfig, serverUrl } from "./server.ts";
import { progress, say } from "./steps.ts";

const USAGE = `npm run down [-- OPTIONS]: pauses all running sandboxes, then stops the server.

  --data-dir DIR   of the server (default ${DEFAULT_DATA_DIR})
  --force          stop also when sandboxes cannot be paused; they run on without a server`;

const STOP_TIMEOUT_MS = 60_000;
const PAUSES_AT_ONCE = 2;

const { values } = parseArgs({
  options: {
    "data-dir": { type: "string", default: DEFAULT_DATA_DIR },
    force: { type: "boolean", default: false },
    help: { type: "boolean", default: false },
  },
});

if (values.help) say(USAGE);
else await down(dataDir(values["data-dir"]));

async function down(data: DataDir): Promise<void> {
  await ensureRoot("to stop the server");
  const keeper = keeperProcess(data);
  if (keeper === undefined) {
    say(`No server runs on ${data.path}.${leftServices(data)}`);
    return;
  }
  await pauseAll(data);
  await progress(`stop the server (keeper ${keeper.pid} and its services)`, async () => {
    process.kill(keeper.pid, "SIGTERM");
    await gone(data);
  });
  say("Paused sandboxes are kept; `npm run up` starts the server again.");
}

async function pauseAll(data: DataDir): Promise<void> {
  const url = serverUrl({ listen: readJson<ServerConfig>(data.configFile)?.listen ?? DEFAULT_LISTEN });
  const key = readKey(data);
  if (key === undefined || (await serverVersion(url)) === undefined) {
    if (values.force) return;
    throw new Error(
      `The server does not answer at ${url}, so its sandboxes cannot be paused. --force stops it all the same.`,
    );
  }
  const api = createApi(url, key);
  const running = await api.sandboxes("running");
  if (running.length === 0) return say("No sandbox runs.");
  const failures = await progress(`pause ${running.length} running sandboxes`, () => pause(api, running));
  for (const failure of failures) say(`      ${failure}`);
  if (failures.length > 0 && !values.force)
    throw new Error("Some sandboxes could not be paused. --force stops the server all the same.");
}

async function pause(api: Api, sandboxes: readonly { readonly sandboxID: string }[]): Promise<readonly string[]> {
  const failures: string[] = [];
  const waiting = [...sandboxes];
  const worker = async (): Promise<void> => {
    for (let next = waiting.shift(); next !== undefined; next = waiting.shift()) {
      try {
        await api.call("POST", `/sandboxes/${next.sandboxID}/pause`);
      } catch (error) {
        failures.push(error instanceof Error ? error.message : String(error));
      }
    }
  };
  await Promise.all(Array.from({ length: PAUSES_AT_ONCE }, worker));
  return failures;
}

/** Returns once the keeper and its services have ended. */
async function gone(data: DataDir): Promise<void> {
  const deadlineMs = Date.now() + STOP_TIMEOUT_MS;
  while (Date.now() < deadlineMs) {
    if (keeperProcess(data) === undefined && runningServices(data).length === 0) return;
    await sleep(100);
  }
  const left = runningServices(data);
  throw new Error(
    `Still running after ${STOP_TIMEOUT_MS / 1000} s: ${left.join(", ") || "keeper"}. The log is ${data.logFile("keeper")}.`,
  );
}

function runningServices(data: DataDir): readonly string[] {
  return SERVICES.flatMap((name) => {
    const found = processOf(data.pidFile(name), [data.path]);
    return found === undefined ? [] : [`${name} (${found.pid})`];
  });
}

function leftServices(data: DataDir): string {
  const left = runningServices(data);
  return left.length === 0
    ? ""
    : ` But without their keeper there are: ${left.join(", ")}; \`npm run up\` takes them up again.`;
}
