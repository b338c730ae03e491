import type { Image, ImageSource, PullProgress } from "./image.ts";
import type { Resources } from "./resources.ts";
import type { MachineCapture, Sandbox, SandboxId, SandboxSpec } from "./sandbox.ts";
import type { LogEntry, LogQuery, Metric, MetricQuery } from "./telemetry.ts";
import type { Snapshot, StartCommands } from "./template.ts";

/**
 * One host's sandboxes, as the control side sees it: the only place where the two sides meet. The orchestrator is the
 * near one; a far one speaks the same over the wire. Every method may be called from many clients at once; for one
 * sandbox they are carried out one at a time, in the order of arrival, and delete always wins.
 */
export interface Node {
  /** Restores a ready snapshot (or boots it, where it holds a disk alone) as a new sandbox and returns when its agent answers. The
   *  timeout counts from then. Errors: not-found (snapshot not here), exhausted, unavailable. Nothing is left behind on error. */
  create(spec: SandboxSpec, snapshot: Snapshot): Promise<Sandbox>;

  /** undefined: there is none. Killing ones are already gone. */
  get(id: SandboxId): Sandbox | undefined;
  /** Newest first (by startedAtMs, then id). */
  list(): Sandbox[];

  /** Ends a sandbox in any state: returns when nothing of it runs any more. Errors: not-found. */
  kill(id: SandboxId): Promise<void>;
  /** Returns when the state is on stable storage and the machine is gone. Concurrent calls join, whatever they would keep. With
   *  `disk` the next resume boots it. Errors: not-found, conflict (`already paused`), invalid (the driver cannot keep this). */
  pause(id: SandboxId, capture?: MachineCapture): Promise<void>;
  /** Makes sure the sandbox runs: a paused one is restored (waits for a pause under way first), a running one is left as
   *  it is. `resumed` tells which. `timeoutMs` only ever extends a running one's life; for a resumed one it is the new
   *  timeout (absent: the one of its spec). Errors: not-found, unavailable. */
  connect(id: SandboxId, timeoutMs?: number, options?: ResumeOptions): Promise<{ sandbox: Sandbox; resumed: boolean }>;
  /** As connect, but a running sandbox is a conflict. */
  resume(id: SandboxId, timeoutMs?: number, options?: ResumeOptions): Promise<Sandbox>;
  /** Sets the end of life to now + timeoutMs; 0 ends it now (by its timeout action). Errors: not-found, conflict (paused). */
  setTimeout(id: SandboxId, timeoutMs: number): Promise<void>;
  /** As setTimeout, but never shortens. */
  extendTimeout(id: SandboxId, timeoutMs: number): Promise<void>;
  /** `count` copies from one moment of a running sandbox, which goes on running. One result for each.
   *  Errors for all: not-found, conflict (paused). */
  fork(id: SandboxId, count: number, timeoutMs?: number): Promise<ForkResult[]>;
  /** Captures a running sandbox, which goes on running and stays reachable. On stable storage when it returns; a record that
   *  knows the snapshot has to follow, or the node's next start removes it. `env`: what the sandbox has from its template. With
   *  `disk` what is created from it is booted. Errors: not-found, conflict (paused, or another snapshot of it under way), invalid
   *  (the driver cannot keep this), unavailable. */
  snapshot(id: SandboxId, env: Readonly<Record<string, string>>, capture?: MachineCapture): Promise<Snapshot>;

  /** Brings an image here (or finds it) and holds it for `holder`. */
  pullImage(
    source: ImageSource,
    holder: string,
    onProgress: (progress: PullProgress) => void,
    signal: AbortSignal,
  ): Promise<Image>;
  /** Boots the image once, waits for its agent, brings up what the commands of the request start, and captures all of it.
   *  Errors: invalid (a command that cannot be run, or ends badly), deadline (never ready). */
  makeSnapshot(request: SnapshotRequest, onStart: (event: StartEvent) => void, signal: AbortSignal): Promise<Snapshot>;
  /** Removes a snapshot's files and its hold on the image. Repeatable. */
  deleteSnapshot(snapshotId: string): Promise<void>;
  /** Ends what `pullImage` holds for `holder`. Repeatable. */
  releaseImages(holder: string): Promise<void>;

  /** Readings of a sandbox, oldest first; thinned where the time asked for is long. Also of one that is paused, or has ended
   *  not too long ago. Errors: not-found. */
  metrics(id: SandboxId, query: MetricQuery): Promise<Metric[]>;
  /** The newest reading of each of these that runs and has one. */
  latestMetrics(ids: readonly SandboxId[]): Promise<Map<SandboxId, Metric>>;
  /** What happened in a sandbox, up to now where it runs. Also of one that is paused, or has ended not too long ago.
   *  Errors: not-found. */
  logs(id: SandboxId, query: LogQuery): Promise<LogEntry[]>;

  stats(): NodeStats;
}

export interface ResumeOptions {
  /** Boots it from its disk, also where its memory was kept. Of no effect on one that runs. Errors: invalid (the driver cannot). */
  readonly reboot?: boolean;
}

export type ForkResult = { readonly sandbox: Sandbox } | { readonly error: Error };

export interface SnapshotRequest {
  readonly image: Image;
  readonly resources: Resources;
  readonly env: Readonly<Record<string, string>>;
  readonly defaultUser: string;
  readonly defaultWorkdir?: string;
  readonly commands: StartCommands;
}

/** What happens while the commands of a template run, in this order; output at any time after `starting`. */
export type StartEvent =
  | { readonly kind: "starting" }
  | { readonly kind: "output"; readonly stream: "stdout" | "stderr"; readonly line: string }
  | { readonly kind: "waiting"; readonly readyCmd: string }
  | { readonly kind: "ready" };

export interface NodeStats {
  readonly running: number;
  /** Of the running ones, those that are idle and stand still. */
  readonly frozen: number;
  readonly paused: number;
  readonly slotsFree: number;
  readonly slotsTotal: number;
  readonly ready: ReadyStats;
}

/** What stands ready on a node, and how often that was of use since its server started. */
export interface ReadyStats {
  /** Machines restored ahead for sandboxes to come. */
  readonly clones: number;
  /** Frozen machines of paused sandboxes. */
  readonly copies: number;
  /** What both hold. */
  readonly memoryBytes: number;
  /** Sandboxes that were started from a ready clone, and such as had to be restored. */
  readonly hotStarts: number;
  readonly coldStarts: number;
  /** Resumes of kept copies, and such as had to be restored. */
  readonly warmResumes: number;
  readonly coldResumes: number;
}
