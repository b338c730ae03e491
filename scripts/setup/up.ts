import { existsSync } from "node:fs";
import { parseArgs } from "node:util";
import { createApi } from "./api.ts";
import { shareAuthority } from "./authority.ts";
import { cacheDir } from "./cache.js";
import { type DataDir, DEFAULT_DATA_DIR, dataDir, makeDataDir, readKey, writeKey } from "./data-dir.ts";
import { ensureRoot } from "./elevate.ts";
import { nextSteps } from "./hints.ts";
import { checkHost } from "./host.ts";
import { type Access, login, prove } from "./prove.ts";
import { serverUrl, startServer, type Tls, tlsOf, type Wishes, wantedConfig, wantedVirtualization } from "./server.ts";
import { serverStepsFor, setUp } from "./setup.ts";
import { ask, confirm, progress, say } from "./steps.ts";
import { baseSpec, hasTemplate, makeTemplate } from "./template.ts";

const USAGE = `npm run up [-- OPTIONS]: sets up what aenv needs, starts it, and shows that it works.

  --yes            do not ask
  --data-dir DIR   where the server keeps all it has (default ${DEFAULT_DATA_DIR})
  --port N         port on 127.0.0.1 (default 8000, or what it was before)
  --virtualization auto|kvm|pvm|gvisor
                   what isolates sandboxes (default auto, or what it was before; see docs/drivers.md)

AENV_API_KEY is taken as the first API key when it is set; AENV_CACHE_DIR moves the cache (${cacheDir()});
AENV_FIRECRACKER_URL names a mirror of Firecracker's releases.`;

const { values } = parseArgs({
  options: {
    yes: { type: "boolean", default: false },
    "data-dir": { type: "string", default: DEFAULT_DATA_DIR },
    port: { type: "string" },
    virtualization: { type: "string" },
    help: { type: "boolean", default: false },
  },
});

if (values.help) say(USAGE);
else {
  await up(dataDir(values["data-dir"]), {
    port: values.port === undefined ? undefined : parsePort(values.port),
    virtualization: values.virtualization === undefined ? undefined : parseVirtualization(values.virtualization),
  });
}

async function up(data: DataDir, wishes: Wishes): Promise<void> {
  await ensureRoot("to install packages and to run sandboxes");
  const asks = !values.yes && process.stdin.isTTY;
  await setUp(await serverStepsFor(wantedVirtualization(data, wishes)), async (plan) => {
    say(`aenv needs the following here (the cache is ${cacheDir()}):\n\n${plan}`);
    return !asks || (await confirm("Go on?"));
  });

  const config = await wantedConfig(data, wishes);
  await checkHost(config);
  await chooseKey(data, asks);
  const outcome = await progress(`server at ${serverUrl(config)}, build ${config.commit}`, () =>
    startServer(data, config),
  );
  say(`      ${outcome}, data in ${data.path}`);

  const access = accessOf(data, serverUrl(config));
  const api = createApi(access.url, access.key);
  if (!(await hasTemplate(data, config, api, baseSpec())))
    await progress("template base", () => makeTemplate(data, config, api, baseSpec()));
  await progress("log the CLI in", () => login(access));
  say("\nDoes it work?");
  await prove(access);
  say(nextSteps(access, await shared(tlsOf(config))));
}

/** With the authority where clients can read it. A server that could not make one serves no HTTPS; its log says why. */
async function shared(tls: Tls | undefined): Promise<Tls | undefined> {
  if (tls?.authority === undefined) return tls;
  return existsSync(tls.authority) ? { ...tls, authority: await shareAuthority(tls.authority) } : undefined;
}

/** The first API key is the operator's to choose; without a choice the server makes one. */
async function chooseKey(data: DataDir, asks: boolean): Promise<void> {
  const present = readKey(data);
  if (present !== undefined) {
    const asked = process.env.AENV_API_KEY;
    if (asked !== undefined && asked !== "" && asked !== present) {
      say(`      the key in ${data.keyFile} stays in force; AENV_API_KEY is another one and is not used`);
    }
    return;
  }
  const chosen = process.env.AENV_API_KEY ?? (asks ? await ask("API key (any text; empty: one is made): ") : "");
  if (chosen === "") return;
  if (!/^[\x21-\x7e]+$/.test(chosen)) throw new Error("The API key has to be printable ASCII without spaces.");
  makeDataDir(data);
  writeKey(data, chosen);
}

function accessOf(data: DataDir, url: string): Access {
  const key = readKey(data);
  if (key === undefined) throw new Error(`The server made no API key at ${data.keyFile}.`);
  return { url, key };
}

function parsePort(text: string): number {
  const port = Number(text);
  if (!Number.isInteger(port) || port < 1 || port > 65535)
    throw new Error(`--port ${text}: a port is a number from 1 to 65535`);
  return port;
}

function parseVirtualization(text: string): Wishes["virtualization"] {
  const known = (["auto", "kvm", "pvm", "gvisor"] as const).find((name) => name === text);
  if (known === undefined) throw new Error(`--virtualization ${text}: it is auto, kvm, pvm or gvisor`);
  return known;
}
