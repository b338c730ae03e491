import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { createApi, serverVersion } from "./api.ts";
import { cacheDir } from "./cache.js";
import { interpreterStepFor } from "./code-interpreter.ts";
import { DEFAULT_DATA_DIR, dataDir, readJson, readKey } from "./data-dir.ts";
import { ensureRoot } from "./elevate.ts";
import { type ServerConfig, serverUrl } from "./server.ts";
import { serverSteps, setUp } from "./setup.ts";
import { progress, say } from "./steps.ts";
import { hasTemplate, INTERPRETER, interpreterSpec, makeTemplate } from "./template.ts";

const USAGE = `npm run template -- code-interpreter [OPTIONS]: makes the template that E2B's code interpreter SDKs ask for, on a
server that runs (npm run up). One that is there already is left alone, unless this checkout makes it otherwise.

  --requirements FILE   more packages of Python, as in a requirements.txt; wheels only
  --name NAME           what the template is called (default ${INTERPRETER})
  --data-dir DIR        of the server (default ${DEFAULT_DATA_DIR})

What it fetches and makes is kept in ${cacheDir()}.`;

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    requirements: { type: "string" },
    name: { type: "string", default: INTERPRETER },
    "data-dir": { type: "string", default: DEFAULT_DATA_DIR },
    help: { type: "boolean", default: false },
  },
});

if (values.help || positionals.length === 0) say(USAGE);
else await make(positionals);

async function make([template, ...others]: readonly string[]): Promise<void> {
  if (template !== "code-interpreter" || others.length > 0)
    throw new Error(`${[template, ...others].join(" ")}: no such template\n\n${USAGE}`);
  await ensureRoot("to make a root file system and to read the server's key");
  const extra = values.requirements === undefined ? "" : readFileSync(values.requirements, "utf8");
  const data = dataDir(values["data-dir"]);
  const config = readJson<ServerConfig>(data.configFile);
  const key = readKey(data);
  if (config === undefined || key === undefined || (await serverVersion(serverUrl(config))) === undefined)
    throw new Error(`No server runs with the data folder ${data.path}: start it first, by npm run up.`);
  const api = createApi(serverUrl(config), key);
  const spec = interpreterSpec(values.name, extra);
  if (await hasTemplate(data, config, api, spec)) return say(`The template ${spec.name} is there already.`);

  await setUp([...serverSteps, interpreterStepFor(values.requirements)], (plan) => {
    say(`The template needs the following:\n\n${plan}`);
    return Promise.resolve(true);
  });
  await progress(`template ${spec.name}`, (note) => makeTemplate(data, config, api, spec, note));
  say(
    `\nSandbox.create() of E2B's code interpreter SDKs starts from it${values.name === INTERPRETER ? "" : `, given the name ${spec.name}`}.`,
  );
}
