import { type BuildRecord, buildTags, parseReference, parseTag, type Templates, templateNotFound } from "#catalog";
import { AenvError, type Build, type Node, newBuildId } from "#domain";
import type { Logger } from "#lib/log";
import { Semaphore } from "#lib/mutex";
import type { Builder, BuildPlan, BuildProgress, BuildRequest, BuildTicket, BuildView } from "./builder.ts";
import { BuildLog } from "./log.ts";
import { type BuildRun, type RunDeps, runBuild } from "./run-build.ts";

/** Builds that run at the same time; the others of `ACTIVE_MAX` are queued. */
const WIDTH = 2;
const ACTIVE_MAX = 32;
/** Builds of one template that were asked for and never started. */
const WAITING_MAX = 100;

const NO_BYTES = { doneBytes: 0, totalBytes: 0, layersDone: 0, layersTotal: 0 };

interface ActiveBuild extends BuildRun {
  readonly abort: AbortController;
  readonly finished: Promise<void>;
}

export interface ImageBuilderDeps {
  readonly node: Node;
  readonly templates: Templates;
  readonly logger: Logger;
  readonly nowMs: () => number;
  /** Called after a build was published: what it replaced may be collected. */
  readonly onPublished: () => Promise<void>;
}

/** The builder of templates that are an image and what is started in it. */
export class ImageBuilder implements Builder {
  readonly #deps: ImageBuilderDeps;
  readonly #active = new Map<string, ActiveBuild>();
  readonly #slots = new Semaphore(WIDTH);
  #closed = false;

  constructor(deps: ImageBuilderDeps) {
    this.#deps = deps;
  }

  async request(request: BuildRequest): Promise<BuildTicket> {
    const { templates, nowMs } = this.#deps;
    const reference = parseReference(request.name, "name");
    const asked = request.tags.map((tag) => parseTag(tag, "tags"));
    const template = await templates.claim(reference.name);
    const waiting = (await templates.builds(template.id)).filter(({ status }) => status === "waiting");
    if (waiting.length >= WAITING_MAX) {
      throw new AenvError("exhausted", `${WAITING_MAX} builds of template '${reference.name}' wait to be started`, {
        hint: "start one of them, or delete the template",
      });
    }
    const tags = buildTags(reference, asked);
    const { resources } = request;
    const ids = { id: newBuildId(), templateId: template.id };
    const build: BuildRecord = { ...ids, status: "waiting", resources, tags, createdAtMs: nowMs() };
    await templates.addBuild(build);
    return { template, build, tags };
  }

  async start(templateId: string, buildId: string, plan: BuildPlan): Promise<void> {
    const build = await this.#find(templateId, buildId);
    if (this.#closed) throw new AenvError("unavailable", "the server is stopping");
    if (this.#active.size >= ACTIVE_MAX) {
      throw new AenvError("exhausted", `${ACTIVE_MAX} builds are under way`, { hint: "try again when one has ended" });
    }
    const started = await this.#deps.templates.updateBuild(build, (current) => {
      if (current.status !== "waiting") throw new AenvError("invalid", "build is not in waiting state");
      return { ...current, status: "building" };
    });
    if (started === undefined) throw templateNotFound(templateId);
    this.#launch(started, plan);
  }

  async view(templateId: string, buildId: string): Promise<BuildView> {
    // The active one is looked for first: if it ends in between, the record read afterwards has its end.
    const active = this.#active.get(buildId);
    const build = await this.#find(templateId, buildId);
    const ended = build.status !== "building" || active === undefined;
    const log = ended ? await this.#deps.templates.log(build) : active.log.entries;
    return { build, log, progress: progressOf(build, active) };
  }

  async cancel(templateId: string): Promise<void> {
    const builds = [...this.#active.values()].filter(({ build }) => build.templateId === templateId);
    const running = builds.filter(({ progress }) => progress.phase !== "queued");
    for (const { abort } of builds) abort.abort(new AenvError("conflict", "the template was deleted"));
    // Queued ones end when their turn comes, which may be long after.
    await Promise.all(running.map(({ finished }) => finished));
  }

  async recover(): Promise<void> {
    const { templates, node, nowMs } = this.#deps;
    for (const build of await templates.builds()) {
      if (build.status !== "building") continue;
      await node.releaseImages(imageHolder(build));
      const template = await templates.find(build.templateId);
      const published = Object.values(template?.tags ?? {}).includes(build.id);
      await templates.updateBuild(build, (current) =>
        published
          ? { ...current, status: "ready", finishedAtMs: nowMs() }
          : { ...current, status: "error", finishedAtMs: nowMs(), reason: INTERRUPTED },
      );
    }
  }

  async close(): Promise<void> {
    this.#closed = true;
    const builds = [...this.#active.values()];
    for (const { abort } of builds) abort.abort(new AenvError("unavailable", INTERRUPTED.message));
    await Promise.all(builds.map(({ finished }) => finished));
  }

  #launch(build: BuildRecord, plan: BuildPlan): void {
    const { node, templates, logger, nowMs } = this.#deps;
    const run: BuildRun = {
      build,
      plan,
      holder: imageHolder(build),
      log: new BuildLog(templates, build, nowMs),
      progress: { phase: "queued", ...NO_BYTES },
    };
    const abort = new AbortController();
    const deps: RunDeps = { logger, node, templates, nowMs };
    const fields = { buildId: build.id, templateId: build.templateId };
    const startedMs = nowMs();
    const work = async (): Promise<void> => {
      try {
        const outcome = await this.#slots.run(() => runBuild(deps, run, abort.signal));
        logger.info("build ended", { ...fields, reason: outcome, durationMs: nowMs() - startedMs });
        await this.#deps.onPublished();
      } catch (error) {
        logger.error("build could not be brought to its end", { ...fields, error });
      } finally {
        this.#active.delete(build.id);
      }
    };
    // Begun a tick later, so that the entry is there before `work` takes it out again.
    const finished = Promise.resolve().then(work);
    this.#active.set(build.id, Object.assign(run, { abort, finished }));
  }

  async #find(templateId: string, buildId: string): Promise<BuildRecord> {
    const template = await this.#deps.templates.find(templateId);
    if (template === undefined) throw templateNotFound(templateId);
    const build = await this.#deps.templates.build(template.id, buildId);
    if (build === undefined) {
      throw new AenvError("invalid", `buildID: template '${templateId}' has no build '${buildId}'`, {
        field: "buildID",
      });
    }
    return build;
  }
}

const INTERRUPTED = {
  kind: "unavailable",
  message: "the server was stopped during the build; start a new one",
} as const;

function imageHolder(build: Build): string {
  return `build-${build.id}`;
}

function progressOf(build: Build, active: ActiveBuild | undefined): BuildProgress {
  const { phase: _, ...bytes } = active?.progress ?? { phase: "queued", ...NO_BYTES };
  if (build.status === "waiting") return { phase: "waiting", ...NO_BYTES };
  if (build.status === "ready") return { phase: "done", ...bytes };
  if (build.status === "error") return { phase: "failed", ...bytes };
  return active?.progress ?? { phase: "queued", ...NO_BYTES };
}
