import { setTimeout as sleep } from "node:timers/promises";
import type { ApiClient, BuildInfo, BuildRef, RegistryLogin } from "../api.ts";
import type { Command } from "../command.ts";
import type { Context } from "../context.ts";
import { CliError, EXIT, EXIT_OF_KIND } from "../errors.ts";
import { onEnding } from "../io.ts";
import { ProgressDisplay } from "../progress.ts";
import { Prompter } from "../prompt.ts";

const POLL_MS = 300;
const ENDED: ReadonlySet<string> = new Set(["done", "failed"]);
/** How long the server may be away (a restart) before we stop asking; the build itself goes on meanwhile. */
const PATIENCE_MS = 60_000;

export const pull: Command = {
  name: "pull",
  aliases: [],
  summary: "make a template from an OCI image",
  args: [{ name: "image", summary: "image reference, as for docker pull" }],
  options: [
    { flags: "-n, --name <name>", summary: "name of the template (default: the image's own)", kind: "text" },
    { flags: "--cpu <count>", summary: "virtual CPUs of its sandboxes", kind: "number", min: 1 },
    { flags: "--memory <mib>", summary: "their memory in MiB", kind: "number", min: 1 },
    { flags: "-u, --username <name>", summary: "log in to the image's registry as this user", kind: "text" },
  ],
  examples: [
    "aenv pull debian:bookworm --name debian",
    "aenv pull registry.example.org/team/tool:1.2 --name tool --cpu 2 --memory 2048",
    "pass show registry | aenv pull registry.example.org/team/tool:1.2 --username me",
  ],
  details: `With --username the password is AENV_REGISTRY_PASSWORD, else it is asked for, or without a terminal the first line of
standard input. Without --username the server's own logins (\`docker login\` on its machine) are used.
An interrupted pull goes on in the server; \`aenv template ls\` shows it. Of one that fails nothing is left.`,
  async run(context, input) {
    const image = input.arg(0);
    const name = input.text("name") ?? defaultName(image);
    const cpuCount = input.number("cpu");
    const memoryMB = input.number("memory");
    const login = await registryLogin(context, input.text("username"));
    const api = await context.api();
    const build = await api.createTemplate({
      name,
      ...(cpuCount === undefined ? {} : { cpuCount }),
      ...(memoryMB === undefined ? {} : { memoryMB }),
    });
    try {
      await api.startBuild(build, image, login);
      await follow(context, api, build);
    } catch (error) {
      if (!(error instanceof CliError && error.exitCode === EXIT.interrupted)) await removeIfEmpty(api, build);
      throw error;
    }
    if (context.json) await context.out.json(await api.getTemplate(build.templateID));
    else await context.out.line(`Template ${name} (${build.templateID}) is ready: aenv start ${name}`);
    return EXIT.ok;
  },
};

async function registryLogin({ io }: Context, username: string | undefined): Promise<RegistryLogin | undefined> {
  if (username === undefined) return undefined;
  const known = io.env.AENV_REGISTRY_PASSWORD;
  if (known) return { username, password: known };
  await using prompter = new Prompter(io);
  const password = io.stdin.isTTY ? await prompter.askHidden(`Password of ${username}`) : await prompter.readLine();
  if (password !== "") return { username, password };
  throw new CliError(EXIT.usage, "no password was given", {
    hint: "use AENV_REGISTRY_PASSWORD or standard input",
  });
}

/** A template that this pull made and that has nothing to start from is of no use to anybody. Never throws: what went wrong
 *  before is what the person has to know. */
async function removeIfEmpty(api: ApiClient, { templateID, buildID }: BuildRef): Promise<void> {
  try {
    const { builds } = await api.getTemplate(templateID);
    if (builds.every((build) => build.status === "error" || build.buildID === buildID)) {
      await api.deleteTemplate(templateID);
    }
  } catch {
    // It stays in the list, as failed.
  }
}

/** Shows the build until it is ready. Throws CliError when it fails or when somebody interrupts the waiting. */
async function follow(context: Context, api: ApiClient, build: BuildRef): Promise<void> {
  const { io } = context;
  const stop = new AbortController();
  const interrupted = new CliError(EXIT.interrupted, "interrupted; the pull goes on in the server", {
    hint: "`aenv template ls` shows how it ends",
  });
  const forget = onEnding(io, () => stop.abort(interrupted));
  const display = new ProgressDisplay(io);
  try {
    let offset = 0;
    for (;;) {
      const info = await patientStatus(api, build, offset, stop.signal);
      const entries = info.logEntries ?? [];
      offset += entries.length;
      // What ended it is said at the end.
      for (const { level, message } of entries) if (level !== "error") await display.log(message);
      if (info.progress !== undefined && !ENDED.has(info.progress.phase)) await display.update(info.progress);
      // The last page of the log comes before the end is the end.
      if (entries.length === 0 && info.status === "ready") return;
      if (entries.length === 0 && info.status === "error") throw failure(info);
      if (entries.length === 0) await sleep(POLL_MS, undefined, { signal: stop.signal }).catch(() => {});
      stop.signal.throwIfAborted();
    }
  } finally {
    forget();
    await display.clear();
  }
}

/** Asks again for a while when the server does not answer. */
async function patientStatus(api: ApiClient, build: BuildRef, offset: number, signal: AbortSignal): Promise<BuildInfo> {
  const untilMs = Date.now() + PATIENCE_MS;
  for (;;) {
    try {
      return await api.buildStatus(build, offset, signal);
    } catch (error) {
      signal.throwIfAborted();
      const mayPass = error instanceof CliError && error.exitCode === EXIT.unavailable;
      if (!mayPass || Date.now() > untilMs) throw error;
      await sleep(POLL_MS, undefined, { signal }).catch(() => {});
      signal.throwIfAborted();
    }
  }
}

function failure(info: BuildInfo): CliError {
  const { message = "the server does not say why", kind } = info.reason ?? {};
  const code = kind === undefined ? EXIT.failure : EXIT_OF_KIND[kind];
  return new CliError(code ?? EXIT.failure, `the template could not be made: ${message}`);
}

/** `registry.example.org/team/Tool:1.2@sha256:…` → `tool`. */
export function defaultName(image: string): string {
  const path = image.split("@")[0] ?? "";
  const last = path.split("/").at(-1)?.split(":")[0] ?? "";
  const name = last
    .toLowerCase()
    .replace(/[^a-z0-9_-]+/g, "-")
    .replace(/^-+|-+$/g, "");
  if (name !== "") return name;
  throw new CliError(EXIT.usage, `'${image}' gives the template no name`, { hint: "say one with --name" });
}
