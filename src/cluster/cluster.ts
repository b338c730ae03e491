import type {
  Build,
  ForkResult,
  LogEntry,
  LogQuery,
  MachineCapture,
  Metric,
  MetricQuery,
  NetworkPolicy,
  NodeStats,
  ResumeOptions,
  Sandbox,
  SandboxId,
  Snapshot,
  Template,
  TimeoutAction,
  TrafficPolicy,
} from "#domain";

/** What a user asks for, before a template is looked up. Durations in ms. */
export interface CreateRequest {
  /** `[team/]name[:tag]` or a template's id. */
  readonly template: string;
  readonly env: Readonly<Record<string, string>>;
  readonly metadata: Readonly<Record<string, string>>;
  readonly network: NetworkPolicy;
  readonly traffic: TrafficPolicy;
  readonly timeoutMs: number;
  readonly onTimeout: TimeoutAction;
  readonly timeoutCapture?: MachineCapture;
  readonly autoResume: boolean;
  readonly secure: boolean;
}

export interface SnapshotOptions {
  readonly name?: string;
  /** Absent: memory, and all else. */
  readonly capture?: MachineCapture;
}

/**
 * All sandboxes and templates, wherever they are: what the API and the edge talk to. It knows names and places; a
 * sandbox's life is its node's business, and the lifecycle calls keep `Node`'s words. Every call on an unknown sandbox is
 * `not-found`.
 */
export interface Cluster {
  /** Returns when the sandbox's agent answers. Errors: invalid (`templateID`), not-found (template, tag), exhausted,
   *  unavailable. Nothing is left behind on error. */
  create(request: CreateRequest): Promise<Sandbox>;
  get(id: SandboxId): Promise<Sandbox>;
  /** Newest first. Those still being created and those being killed are not shown. */
  list(): Promise<Sandbox[]>;

  kill(id: SandboxId): Promise<void>;
  pause(id: SandboxId, capture?: MachineCapture): Promise<void>;
  connect(id: SandboxId, timeoutMs?: number, options?: ResumeOptions): Promise<{ sandbox: Sandbox; resumed: boolean }>;
  resume(id: SandboxId, timeoutMs?: number, options?: ResumeOptions): Promise<Sandbox>;
  setTimeout(id: SandboxId, timeoutMs: number): Promise<void>;
  extendTimeout(id: SandboxId, timeoutMs: number): Promise<void>;
  fork(id: SandboxId, count: number, timeoutMs?: number): Promise<ForkResult[]>;

  /** Captures a running sandbox, which goes on, as what sandboxes are created from. `name` (`[team/]name[:tag]`): there, in
   *  the place of what the tag stood for; absent: under an id of its own. Errors: invalid (`name`; `memory`, where the disk alone
   *  cannot be kept), not-found, conflict (paused, captured already, a template's name), unavailable. Nothing is left behind on
   *  error. */
  createSnapshot(id: SandboxId, options?: SnapshotOptions): Promise<SnapshotView>;
  /** In no order, one for each name or id: the newest that the filter lets through. Errors: invalid (`name`). */
  listSnapshots(filter: SnapshotFilter): Promise<SnapshotView[]>;

  metrics(id: SandboxId, query: MetricQuery): Promise<Metric[]>;
  latestMetrics(ids: readonly SandboxId[]): Promise<Map<SandboxId, Metric>>;
  logs(id: SandboxId, query: LogQuery): Promise<LogEntry[]>;

  /** Newest first, without snapshots. */
  listTemplates(): Promise<TemplateView[]>;
  /** By `[team/]name[:tag]` or id. Errors: invalid, not-found (also for a written tag that is not there). */
  template(reference: string): Promise<TemplateView>;
  /** As `template`, without its builds. */
  lookUp(reference: string): Promise<Template>;
  /** A snapshot too; of one with other tags only the tag that is written. Errors: not-found, invalid (sandboxes, running or
   *  paused, use it; or a tag of a template is written and there are others). */
  deleteTemplate(reference: string): Promise<Template>;
  /** Returns the id of the build they now point to. Errors: invalid, not-found. */
  assignTags(target: string, tags: readonly string[]): Promise<string>;
  /** Errors: invalid, not-found. */
  removeTags(name: string, tags: readonly string[]): Promise<void>;

  /** Removes snapshots nothing can start from any more and no sandbox was started from. Repeatable. */
  collect(): Promise<void>;
  stats(): Promise<NodeStats>;
}

/** A captured sandbox and what it is called. */
export interface SnapshotView {
  readonly template: Template;
  readonly build: Build;
  readonly snapshot: Snapshot;
  /** That point to it, at least one; the one it is shown by first. */
  readonly tags: readonly string[];
}

export interface SnapshotFilter {
  /** Captured from this one. */
  readonly sandboxId?: SandboxId;
  /** `[team/]name[:tag]` or a template's id; without a tag, any. */
  readonly name?: string;
}

export interface TemplateView {
  readonly template: Template;
  /** Newest first. */
  readonly builds: readonly Build[];
}
