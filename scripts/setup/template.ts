import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import type { Api } from "./api.ts";
import { baseRecipeHash, baseTar } from "./base.ts";
import { type DataDir, readJson, writeJson } from "./data-dir.ts";
import { root } from "./node.js";
import { run } from "./run.ts";
import type { ServerConfig } from "./server.ts";

/** What the template is made from; when it differs the template is built anew. */
interface BaseRecord {
  readonly recipe: string;
  readonly agent: string;
  readonly runtime: string;
}

interface BuildStatus {
  readonly status: "waiting" | "building" | "ready" | "error";
  readonly reason?: { readonly message?: string };
}

const BUILD_TIMEOUT_MS = 300_000;

/** True when the server has the template `base` as this checkout makes it. */
export async function hasBaseTemplate(data: DataDir, config: ServerConfig, api: Api): Promise<boolean> {
  const present = readJson<BaseRecord>(data.baseFile);
  const wanted = recordFor(config);
  if (present?.recipe !== wanted.recipe || present.agent !== wanted.agent || present.runtime !== wanted.runtime)
    return false;
  const templates = await api.call<{ names?: string[]; aliases?: string[] }[]>("GET", "/templates");
  return templates.some(({ names, aliases }) => names?.includes("base") || aliases?.includes("base"));
}

/** Takes the root file system into the store and builds the template `base` from it. Sandboxes of an older `base` run on. */
export async function makeBaseTemplate(data: DataDir, config: ServerConfig, api: Api): Promise<void> {
  const argv = [
    process.execPath,
    join(root, "src", "aenvd.ts"),
    "import",
    "--config",
    data.configFile,
    "--tar",
    baseTar(),
  ];
  const { digest } = JSON.parse(await run(argv)) as { digest: string };
  const { templateID, buildID } = await api.call<{ templateID: string; buildID: string }>("POST", "/v3/templates", {
    name: "base",
  });
  await api.call("POST", `/v2/templates/${templateID}/builds/${buildID}`, { fromImage: digest });
  await buildDone(api, `/templates/${templateID}/builds/${buildID}/status?logsOffset=0`);
  writeJson(data.baseFile, recordFor(config));
}

async function buildDone(api: Api, path: string): Promise<void> {
  const deadlineMs = Date.now() + BUILD_TIMEOUT_MS;
  while (Date.now() < deadlineMs) {
    const { status, reason } = await api.call<BuildStatus>("GET", path);
    if (status === "ready") return;
    if (status === "error")
      throw new Error(`the build of the template base failed: ${reason?.message ?? "no reason given"}`);
    await sleep(200);
  }
  throw new Error(`the build of the template base is not done after ${BUILD_TIMEOUT_MS / 1000} s`);
}

function recordFor(config: ServerConfig): BaseRecord {
  const agent = createHash("sha256")
    .update(readFileSync(join(config.binDir, "envd")))
    .digest("hex");
  const { virtualization = "auto", runscPath, firecrackerPath = "" } = config;
  // Made by the one, it does not run on the other, nor on another version.
  return { recipe: baseRecipeHash(), agent, runtime: [virtualization, runscPath, firecrackerPath].join(" ").trim() };
}
