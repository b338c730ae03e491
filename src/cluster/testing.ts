import {
  AenvError,
  decide,
  type ForkResult,
  type Image,
  type ImageSource,
  type LifecycleRequest,
  type LogEntry,
  type LogQuery,
  type MachineCapture,
  type Metric,
  type MetricQuery,
  type Node,
  type NodeStats,
  newSandboxId,
  newToken,
  type PullProgress,
  type ResumeOptions,
  type Sandbox,
  type SandboxId,
  type SandboxSpec,
  type SandboxState,
  type Snapshot,
  type SnapshotRequest,
  type StartCommands,
  type StartEvent,
  sandboxNotFound,
  tokensFor,
} from "#domain";

type Method =
  | "create"
  | "kill"
  | "pause"
  | "connect"
  | "resume"
  | "setTimeout"
  | "fork"
  | "snapshot"
  | "pullImage"
  | "makeSnapshot"
  | "deleteSnapshot";

/** What all snapshots of a fake node have. */
const MADE = {
  driver: "fake",
  driverVersion: "1",
  arch: "x86_64",
  formatVersion: 1,
  agentDigest: "b".repeat(64),
  sizeBytes: 10,
} as const;

/** A node for tests of the control side: sandboxes are entries of a map, time is a number, failures are scripted. */
export class FakeNode implements Node {
  nowMs = Date.parse("2030-01-02T03:04:05.000Z");
  readonly sandboxes = new Map<SandboxId, Sandbox>();
  readonly snapshots = new Map<string, Snapshot>();
  /** holder → image digests. */
  readonly held = new Map<string, string[]>();
  readonly pulls: ImageSource[] = [];
  /** What is kept of sandboxes, of ended ones too; queries are noted and not carried out. */
  readonly keptMetrics = new Map<SandboxId, Metric[]>();
  readonly keptLogs = new Map<SandboxId, LogEntry[]>();
  readonly queries: (MetricQuery | LogQuery)[] = [];
  /** What each pause was to keep, and whether each resume was to boot. */
  readonly captures: MachineCapture[] = [];
  readonly reboots: boolean[] = [];
  /** What the snapshots were asked to start. */
  readonly commands: StartCommands[] = [];
  /** What the next snapshots tell of their start. */
  startEvents: StartEvent[] = [];
  imageConfig: Image["config"] = { env: { PATH: "/bin" }, entrypoint: [], cmd: [], user: "", workingDir: "" };
  #failures: { readonly method: Method; readonly error: Error }[] = [];
  #gates: { readonly method: Method; readonly opened: Promise<void>; readonly entered: () => void }[] = [];

  /** The next call of `method` throws; of fork, one of its copies. */
  failNext(method: Method, error: Error): void {
    this.#failures.push({ method, error });
  }

  /** The next call of `method` waits. `entered` settles when it has begun; `open` lets it go on. */
  holdNext(method: Method): { readonly entered: Promise<void>; readonly open: () => void } {
    const entered = Promise.withResolvers<void>();
    const opened = Promise.withResolvers<void>();
    this.#gates.push({ method, opened: opened.promise, entered: entered.resolve });
    return { entered: entered.promise, open: opened.resolve };
  }

  setState(id: SandboxId, state: SandboxState): void {
    const sandbox = this.sandboxes.get(id);
    if (sandbox !== undefined) this.sandboxes.set(id, { ...sandbox, state });
  }

  async create(spec: SandboxSpec, snapshot: Snapshot): Promise<Sandbox> {
    await this.#script("create");
    if (!this.snapshots.has(snapshot.id)) throw new AenvError("not-found", `snapshot ${snapshot.id} is not here`);
    return this.#add(spec, snapshot.id, snapshot.envdVersion);
  }

  get(id: SandboxId): Sandbox | undefined {
    return this.sandboxes.get(id);
  }

  list(): Sandbox[] {
    return [...this.sandboxes.values()].sort((a, b) => b.startedAtMs - a.startedAtMs || (a.id < b.id ? 1 : -1));
  }

  async kill(id: SandboxId): Promise<void> {
    await this.#script("kill");
    this.#decide(id, "kill");
    this.sandboxes.delete(id);
  }

  async pause(id: SandboxId, capture: MachineCapture = "memory"): Promise<void> {
    await this.#script("pause");
    this.captures.push(capture);
    const sandbox = this.#decide(id, "pause");
    this.sandboxes.set(id, { ...sandbox, state: "paused", endAtMs: this.nowMs });
  }

  async connect(
    id: SandboxId,
    timeoutMs?: number,
    options?: ResumeOptions,
  ): Promise<{ sandbox: Sandbox; resumed: boolean }> {
    await this.#script("connect");
    const sandbox = this.#decide(id, "connect");
    if (sandbox.state === "paused") return { sandbox: this.#wake(sandbox, timeoutMs, options), resumed: true };
    if (timeoutMs !== undefined) await this.extendTimeout(id, timeoutMs);
    return { sandbox: this.sandboxes.get(id) ?? sandbox, resumed: false };
  }

  async resume(id: SandboxId, timeoutMs?: number, options?: ResumeOptions): Promise<Sandbox> {
    await this.#script("resume");
    return this.#wake(this.#decide(id, "resume"), timeoutMs, options);
  }

  async setTimeout(id: SandboxId, timeoutMs: number): Promise<void> {
    await this.#script("setTimeout");
    const sandbox = this.#decide(id, "set-timeout");
    this.sandboxes.set(id, { ...sandbox, endAtMs: this.nowMs + timeoutMs });
  }

  async extendTimeout(id: SandboxId, timeoutMs: number): Promise<void> {
    const sandbox = this.#decide(id, "set-timeout");
    this.sandboxes.set(id, { ...sandbox, endAtMs: Math.max(sandbox.endAtMs, this.nowMs + timeoutMs) });
  }

  async fork(id: SandboxId, count: number, timeoutMs?: number): Promise<ForkResult[]> {
    const source = this.#decide(id, "fork");
    const spec = { ...source.spec, timeoutMs: timeoutMs ?? source.spec.timeoutMs };
    const results: ForkResult[] = [];
    for (let n = 0; n < count; n += 1) {
      try {
        await this.#script("fork");
        const child = { ...this.#add(spec, source.snapshotId, source.envdVersion), forkedFrom: source.id };
        this.sandboxes.set(child.id, child);
        results.push({ sandbox: child });
      } catch (error) {
        results.push({ error: error as Error });
      }
    }
    return results;
  }

  async snapshot(
    id: SandboxId,
    env: Readonly<Record<string, string>>,
    capture: MachineCapture = "memory",
  ): Promise<Snapshot> {
    const { spec, snapshotId, envdVersion } = this.#decide(id, "snapshot");
    await this.#script("snapshot");
    const { resources, defaultUser, defaultWorkdir } = spec;
    return this.#addSnapshot({
      ...{ imageDigest: `sha256:${"a".repeat(64)}`, envdVersion, resources, env, defaultUser },
      ...(defaultWorkdir !== undefined && { defaultWorkdir }),
      ...{ parentId: snapshotId, sandboxId: id, ...(capture === "disk" && { capture }) },
    });
  }

  async pullImage(
    source: ImageSource,
    holder: string,
    onProgress: (progress: PullProgress) => void,
    signal: AbortSignal,
  ): Promise<Image> {
    this.pulls.push(source);
    onProgress({ phase: "downloading", doneBytes: 5, totalBytes: 10, layersDone: 1, layersTotal: 2 });
    await this.#script("pullImage", signal);
    const digest = source.kind === "local" ? source.digest : `sha256:${"a".repeat(64)}`;
    this.held.set(holder, [...(this.held.get(holder) ?? []), digest]);
    return { digest, sizeBytes: 10, config: this.imageConfig, layers: 2 };
  }

  async makeSnapshot(
    request: SnapshotRequest,
    onStart: (event: StartEvent) => void,
    signal: AbortSignal,
  ): Promise<Snapshot> {
    for (const event of this.startEvents) onStart(event);
    await this.#script("makeSnapshot", signal);
    const { image, commands, ...rest } = request;
    this.commands.push(commands);
    return this.#addSnapshot({ imageDigest: image.digest, envdVersion: "0.5.2", ...rest });
  }

  async deleteSnapshot(snapshotId: string): Promise<void> {
    await this.#script("deleteSnapshot");
    this.snapshots.delete(snapshotId);
  }

  async releaseImages(holder: string): Promise<void> {
    this.held.delete(holder);
  }

  async metrics(id: SandboxId, query: MetricQuery): Promise<Metric[]> {
    return this.#kept(id, this.keptMetrics, query);
  }

  async latestMetrics(ids: readonly SandboxId[]): Promise<Map<SandboxId, Metric>> {
    const newest = (id: SandboxId) => this.keptMetrics.get(id)?.at(-1);
    return new Map(ids.flatMap((id) => (this.sandboxes.has(id) ? [[id, newest(id)] as const] : []))) as Map<
      SandboxId,
      Metric
    >;
  }

  async logs(id: SandboxId, query: LogQuery): Promise<LogEntry[]> {
    return this.#kept(id, this.keptLogs, query).slice(0, query.limit);
  }

  stats(): NodeStats {
    const paused = this.list().filter(({ state }) => state === "paused").length;
    const ready = {
      clones: 0,
      copies: 0,
      memoryBytes: 0,
      hotStarts: 0,
      coldStarts: 0,
      warmResumes: 0,
      coldResumes: 0,
    };
    return { running: this.sandboxes.size - paused, frozen: 0, paused, slotsFree: 4, slotsTotal: 8, ready };
  }

  #addSnapshot(facts: Omit<Snapshot, keyof typeof MADE | "id" | "initKey" | "createdAtMs">): Snapshot {
    const id = `s${newToken().slice(0, 19)}`;
    const snapshot = { id, ...MADE, ...facts, initKey: newToken(), createdAtMs: this.nowMs };
    this.snapshots.set(id, snapshot);
    return snapshot;
  }

  #kept<T>(id: SandboxId, all: ReadonlyMap<SandboxId, T[]>, query: MetricQuery | LogQuery): T[] {
    this.queries.push(query);
    const kept = all.get(id);
    if (kept === undefined && !this.sandboxes.has(id)) throw sandboxNotFound(id);
    return kept ?? [];
  }

  #add(spec: SandboxSpec, snapshotId: string, envdVersion: string): Sandbox {
    const id = newSandboxId();
    const times = { startedAtMs: this.nowMs, endAtMs: this.nowMs + spec.timeoutMs };
    const sandbox = {
      id,
      generation: 1,
      state: "running" as const,
      spec,
      snapshotId,
      envdVersion,
      ...tokensFor(spec),
      ...times,
    };
    this.sandboxes.set(id, sandbox);
    return sandbox;
  }

  #wake(sandbox: Sandbox, timeoutMs = sandbox.spec.timeoutMs, { reboot = false }: ResumeOptions = {}): Sandbox {
    this.reboots.push(reboot);
    const generation = sandbox.generation + 1;
    const awake = { ...sandbox, generation, state: "running" as const, endAtMs: this.nowMs + timeoutMs };
    this.sandboxes.set(sandbox.id, awake);
    return awake;
  }

  /** The real policy, without its waiting: a test that meets `wait` or `join` has set up a state that never ends. */
  #decide(id: SandboxId, request: LifecycleRequest): Sandbox {
    const sandbox = this.sandboxes.get(id);
    if (sandbox === undefined) throw sandboxNotFound(id);
    const decision = decide(sandbox.state, request);
    if (decision.kind === "refuse") throw new AenvError(decision.error, `Sandbox "${id}" ${decision.reason}`);
    return sandbox;
  }

  async #script(method: Method, signal?: AbortSignal): Promise<void> {
    const gate = this.#gates.find((each) => each.method === method);
    if (gate !== undefined) {
      this.#gates = this.#gates.filter((each) => each !== gate);
      gate.entered();
      const aborted = new Promise<never>((_, reject) =>
        signal?.addEventListener("abort", () => reject(signal.reason), { once: true }),
      );
      await Promise.race([gate.opened, aborted]);
    }
    const failure = this.#failures.find((each) => each.method === method);
    if (failure === undefined) return;
    this.#failures = this.#failures.filter((each) => each !== failure);
    throw failure.error;
  }
}
