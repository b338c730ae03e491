import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import type { Api } from "./api.ts";
import { baseRecipeHash, baseTar } from "./base.ts";
import { interpreterHash, interpreterTar } from "./code-interpreter.ts";
import { type DataDir, readJson, writeJson } from "./data-dir.ts";
import { root } from "./node.js";
import { run } from "./run.ts";
import type { ServerConfig } from "./server.ts";
import type { Note } from "./steps.ts";

/** A template that this checkout makes from a root file system of its own. */
export interface TemplateSpec {
  readonly name: string;
  /** Names the content of `tar`. */
  readonly recipe: string;
  readonly tar: string;
  /** Of the image made of `tar`, where the store has it already. */
  readonly digest?: string;
  readonly startCmd?: string;
  readonly readyCmd?: string;
}

export function baseSpec(): TemplateSpec {
  return { name: "base", recipe: baseRecipeHash(), tar: baseTar() };
}

/** @param extra content of a requirements file of the user's, "" for none */
export function interpreterSpec(name = INTERPRETER, extra = ""): TemplateSpec {
  return {
    name,
    recipe: interpreterHash(extra),
    tar: interpreterTar(extra),
    startCmd: "exec sudo --non-interactive /opt/code-interpreter/run",
    readyCmd: "curl --fail --silent --show-error http://localhost:49999/health",
  };
}

/** The template that E2B's code interpreter SDKs ask for. */
export const INTERPRETER = "code-interpreter-v1";

/** What a template is made from; when it differs the template is built anew. */
interface TemplateRecord {
  readonly recipe: string;
  readonly agent: string;
  readonly runtime: string;
}

interface BuildStatus {
  readonly status: "waiting" | "building" | "ready" | "error";
  readonly logEntries: readonly { readonly message: string }[];
  readonly reason?: { readonly message?: string };
}

const BUILD_TIMEOUT_MS = 300_000;

/** True when the server has the template as this checkout makes it. */
export async function hasTemplate(
  data: DataDir,
  config: ServerConfig,
  api: Api,
  { name, recipe }: TemplateSpec,
): Promise<boolean> {
  const present = readJson<TemplateRecord>(data.templateFile(name));
  const wanted = recordFor(config, recipe);
  if (present?.recipe !== wanted.recipe || present.agent !== wanted.agent || present.runtime !== wanted.runtime)
    return false;
  const templates = await api.call<{ names?: string[]; aliases?: string[] }[]>("GET", "/templates");
  return templates.some(({ names, aliases }) => names?.includes(name) || aliases?.includes(name));
}

/**
 * Takes the root file system into the store and builds the template from it. Sandboxes of an older build run on.
 * @returns the digest of the image it was made from
 */
export async function makeTemplate(
  data: DataDir,
  config: ServerConfig,
  api: Api,
  spec: TemplateSpec,
  note: Note = () => {},
): Promise<string> {
  const { name, recipe, startCmd, readyCmd } = spec;
  note("taking in its files");
  const digest = spec.digest ?? (await importTar(data, spec.tar));
  const { templateID, buildID } = await api.call<{ templateID: string; buildID: string }>("POST", "/v3/templates", {
    name,
  });
  await api.call("POST", `/v2/templates/${templateID}/builds/${buildID}`, { fromImage: digest, startCmd, readyCmd });
  await buildDone(api, `/templates/${templateID}/builds/${buildID}/status`, name, note);
  writeJson(data.templateFile(name), recordFor(config, recipe));
  return digest;
}

async function importTar(data: DataDir, tar: string): Promise<string> {
  const entry = join(root, "src", "aenvd.ts");
  const argv = [process.execPath, entry, "import", "--config", data.configFile, "--tar", tar];
  return (JSON.parse(await run(argv)) as { digest: string }).digest;
}

async function buildDone(api: Api, path: string, name: string, note: Note): Promise<void> {
  const deadlineMs = Date.now() + BUILD_TIMEOUT_MS;
  let offset = 0;
  while (Date.now() < deadlineMs) {
    const { status, reason, logEntries } = await api.call<BuildStatus>("GET", `${path}?logsOffset=${offset}`);
    offset += logEntries.length;
    for (const { message } of logEntries.slice(-1)) note(message.split("\n")[0]?.slice(0, 60) ?? "");
    if (status === "ready") return;
    if (status === "error")
      throw new Error(`the build of the template ${name} failed: ${reason?.message ?? "no reason given"}`);
    await sleep(200);
  }
  throw new Error(`the build of the template ${name} is not done after ${BUILD_TIMEOUT_MS / 1000} s`);
}

function recordFor(config: ServerConfig, recipe: string): TemplateRecord {
  const agent = createHash("sha256")
    .update(readFileSync(join(config.binDir, "envd")))
    .digest("hex");
  const { virtualization = "auto", runscPath, firecrackerPath = "" } = config;
  // Made by the one, it does not run on the other, nor on another version.
  return { recipe, agent, runtime: [virtualization, runscPath, firecrackerPath].join(" ").trim() };
}
