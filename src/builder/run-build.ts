import type { BuildRecord, Templates } from "#catalog";
import {
  AenvError,
  type BuildLogEntry,
  errorKind,
  type Image,
  logLevelOf,
  MIB,
  type Node,
  type Snapshot,
} from "#domain";
import { fault } from "#lib/fault";
import type { Logger } from "#lib/log";
import type { BuildPlan, BuildProgress } from "./builder.ts";
import type { BuildLog } from "./log.ts";
import { StartLog } from "./start-log.ts";

/** One build under way. */
export interface BuildRun {
  readonly build: BuildRecord;
  readonly plan: BuildPlan;
  /** Who holds the image until the snapshot does. */
  readonly holder: string;
  readonly log: BuildLog;
  progress: BuildProgress;
}

export interface RunDeps {
  readonly logger: Logger;
  readonly node: Node;
  readonly templates: Templates;
  readonly nowMs: () => number;
}

/** E2B's name of the step a failure is shown at: getting the base, or what comes after the user's steps. */
type Step = "base" | "finalize";

/**
 * Brings a build to `ready` or `error`, never throws for what the build did. A build whose records vanish meanwhile (its
 * template was deleted) leaves nothing behind.
 */
export async function runBuild(deps: RunDeps, run: BuildRun, signal: AbortSignal): Promise<"ready" | "error" | "gone"> {
  let step: Step = "base";
  let snapshot: Snapshot | undefined;
  let published: BuildRecord | undefined;
  try {
    signal.throwIfAborted();
    const image = await pull(deps, run, signal);
    step = "finalize";
    const startLog = new StartLog(run.log);
    snapshot = await capture(deps, run, image, startLog, signal);
    startLog.throwIfFailed();
    published = await publish(deps, run, snapshot);
  } catch (error) {
    return await fail(deps, run, step, snapshot, error);
  } finally {
    await deps.node.releaseImages(run.holder);
  }
  // From here on sandboxes start from it: what fails now no longer takes the snapshot away.
  if (published === undefined) return "gone";
  await fault("build.published");
  await addLastWord(deps, run, "info", `Build finished, tagged ${published.tags.join(", ")}`, "finalize");
  await deps.templates.updateBuild(published, (build) => ({ ...build, status: "ready", finishedAtMs: deps.nowMs() }));
  return "ready";
}

async function pull(deps: RunDeps, run: BuildRun, signal: AbortSignal): Promise<Image> {
  const { log } = run;
  const { source } = run.plan;
  run.progress = { ...run.progress, phase: "resolving" };
  await log.add("info", `FROM ${source.kind === "registry" ? source.reference : source.digest}`, "base");
  const image = await deps.node.pullImage(
    source,
    run.holder,
    (progress) => {
      run.progress = { ...progress, phase: progress.phase === "done" ? "converting" : progress.phase };
    },
    signal,
  );
  const size = `${Math.ceil(image.sizeBytes / MIB)} MiB in ${image.layers} layers`;
  await log.add("info", `Image ${image.digest} is here: ${size}`, "base");
  return image;
}

async function capture(
  deps: RunDeps,
  run: BuildRun,
  image: Image,
  startLog: StartLog,
  signal: AbortSignal,
): Promise<Snapshot> {
  const { commands } = run.plan;
  const starts = commands.startCmd !== undefined || commands.readyCmd !== undefined;
  run.progress = { ...run.progress, phase: starts ? "starting" : "snapshotting" };
  await run.log.add("info", "Starting the image once and capturing it", "finalize");
  const { env, user, workingDir } = image.config;
  // An image's user may carry a group (`app:staff`); the agent looks users up by name alone.
  const defaultUser = user.split(":")[0] || "root";
  try {
    return await deps.node.makeSnapshot(
      {
        image,
        resources: run.build.resources,
        env,
        defaultUser,
        ...(workingDir === "" ? {} : { defaultWorkdir: workingDir }),
        commands,
      },
      (event) => {
        startLog.add(event);
        if (event.kind === "ready") run.progress = { ...run.progress, phase: "snapshotting" };
      },
      signal,
    );
  } finally {
    await startLog.settled();
  }
}

/**
 * First the snapshot into the record, then the tags, then `ready`: whoever sees a tag finds a snapshot behind it, and
 * after a crash the tags tell whether it was published. undefined: the template is gone, and with it the build.
 */
async function publish(deps: RunDeps, run: BuildRun, snapshot: Snapshot): Promise<BuildRecord | undefined> {
  const { templates } = deps;
  run.progress = { ...run.progress, phase: "publishing" };
  const captured = await templates.updateBuild(run.build, (build) => ({ ...build, snapshot }));
  await fault("build.captured");
  if (captured !== undefined && (await templates.publish(captured))) return captured;
  await deps.node.deleteSnapshot(snapshot.id);
  await templates.removeBuild(run.build);
  return undefined;
}

async function fail(
  deps: RunDeps,
  run: BuildRun,
  step: Step,
  snapshot: Snapshot | undefined,
  error: unknown,
): Promise<"error" | "gone"> {
  const message = reasonOf(error);
  // The user sees one sentence; the rest of what may be the server's fault is for who runs it.
  const level = logLevelOf(error);
  if (level !== undefined) {
    deps.logger[level]("build failed", { buildId: run.build.id, templateId: run.build.templateId, error });
  }
  // A removed record is not written again by its log.
  const current = await deps.templates.build(run.build.templateId, run.build.id);
  if (current !== undefined) await addLastWord(deps, run, "error", message, step);
  if (snapshot !== undefined) await deps.node.deleteSnapshot(snapshot.id);
  const failed = await deps.templates.updateBuild(run.build, ({ snapshot: _, ...build }) => ({
    ...build,
    status: "error",
    finishedAtMs: deps.nowMs(),
    reason: { message, kind: errorKind(error), step },
  }));
  return failed === undefined ? "gone" : "error";
}

/** What became of a build is in its record, and comes there though its log cannot be written. */
async function addLastWord(
  { logger }: RunDeps,
  { build, log }: BuildRun,
  level: BuildLogEntry["level"],
  message: string,
  step: Step,
): Promise<void> {
  try {
    await log.add(level, message, step);
  } catch (error) {
    const fields = { buildId: build.id, templateId: build.templateId };
    logger.error("the last word of a build's log could not be written", { ...fields, error });
  }
}

/** What a user is told: our own sentences with their hint, and the first line of anything else. */
function reasonOf(error: unknown): string {
  if (error instanceof AenvError) return error.hint === undefined ? error.message : `${error.message}; ${error.hint}`;
  const text = error instanceof Error ? error.message : String(error);
  return text.split("\n")[0] ?? "";
}
