import type { Build, BuildLogEntry, ImageSource, Resources, StartCommands, Template } from "#domain";

/** What a new build is asked for. */
export interface BuildRequest {
  /** `[team/]name[:tag]`; a name nobody has makes a new template. */
  readonly name: string;
  /** More tags, beside the one in the name. */
  readonly tags: readonly string[];
  readonly resources: Resources;
}

/** What a build is made of. */
export interface BuildPlan {
  readonly source: ImageSource;
  readonly commands: StartCommands;
}

export interface BuildTicket {
  readonly template: Template;
  readonly build: Build;
  /** What will point to the build when it is ready. */
  readonly tags: readonly string[];
}

/** How far a build is. Bytes and layers are those of the image; 0 while unknown. */
export interface BuildProgress {
  readonly phase:
    | "waiting"
    | "queued"
    | "resolving"
    | "downloading"
    | "converting"
    | "starting"
    | "snapshotting"
    | "publishing"
    | "done"
    | "failed";
  readonly doneBytes: number;
  readonly totalBytes: number;
  readonly layersDone: number;
  readonly layersTotal: number;
}

export interface BuildView {
  readonly build: Build;
  readonly log: readonly BuildLogEntry[];
  readonly progress: BuildProgress;
}

/**
 * Makes templates from images: pull, boot once, run the start command, capture, publish under a name and tags. A build waits for `start`, then
 * runs in the background, owned by the builder. Its record, and so its outcome, outlives the process; progress does not.
 */
export interface Builder {
  /** Makes the template (if its name is new) and a build that waits. Errors: invalid, exhausted (too many wait). */
  request(request: BuildRequest): Promise<BuildTicket>;
  /** Starts a waiting build; it is `building` when this returns. Errors: not-found (template), invalid (no such build, or
   *  it does not wait), exhausted (too many under way). */
  start(templateId: string, buildId: string, plan: BuildPlan): Promise<void>;
  /** Errors: not-found (template), invalid (no such build). */
  view(templateId: string, buildId: string): Promise<BuildView>;
  /** Stops the builds of a template that is gone and waits for the end of those that run. */
  cancel(templateId: string): Promise<void>;
  /** Ends what a crash left `building`: published builds become ready, the others fail. Call before the first request. */
  recover(): Promise<void>;
  /** Stops all builds under way (they fail) and waits for their end. Repeatable. */
  close(): Promise<void>;
}
