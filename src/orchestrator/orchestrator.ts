import {
  AenvError,
  decide,
  expiryOf,
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
  type PullProgress,
  type ResumeOptions,
  type RouteSource,
  type Sandbox,
  type SandboxId,
  type SandboxSpec,
  type SandboxState,
  type Snapshot,
  type SnapshotRequest,
  type StartEvent,
  sandboxNotFound,
} from "#domain";
import type { Context } from "./context.ts";
import { create, createFromClone, newEntry } from "./create.ts";
import { requireCapture } from "./disk-capture.ts";
import type { Entry } from "./entry.ts";
import { fork } from "./fork.ts";
import { end } from "./kill.ts";
import { Sleeper } from "./ladder/sleeper.ts";
import { MemoryGuard } from "./memory-guard.ts";
import { pause } from "./pause.ts";
import { Reaper } from "./reaper.ts";
import { recover, removeOldAgents } from "./recover.ts";
import { resume } from "./resume.ts";
import { isResumedByTraffic } from "./run.ts";
import { Snapshots } from "./snapshots.ts";

const AT_WORK_OR_REST: ReadonlySet<SandboxState> = new Set(["running", "freezing", "frozen", "thawing"]);

/**
 * One host's sandboxes. Requests are decided by the pure lifecycle policy; what is accepted runs as the entry's one
 * operation, others join it or wait for it to settle and are decided again. A wanted kill wins over whatever waits.
 */
export class Orchestrator implements Node {
  readonly #context: Context;
  readonly #snapshots: Snapshots;
  readonly #reaper: Reaper;
  readonly #memoryGuard: MemoryGuard;
  readonly #sleeper: Sleeper;

  private constructor(context: Context) {
    this.#context = context;
    this.#snapshots = new Snapshots(context);
    this.#memoryGuard = new MemoryGuard(context);
    this.#sleeper = new Sleeper(context);
    this.#reaper = new Reaper({
      entries: context.entries,
      logger: context.logger,
      pausedRetentionMs: context.pausedRetentionMs,
      expire: (entry) => this.#expire(entry),
    });
  }

  /** Takes up what an earlier server on this data folder left: running sandboxes go on, half-done operations are brought
   *  to the state before or after, everything nobody knows is removed. */
  static async start(context: Context): Promise<Orchestrator> {
    await recover(context);
    await context.telemetry.retain(new Set((await context.journal.load()).map(({ sandbox }) => sandbox.id)));
    context.collector.start();
    context.ladder.start();
    return new Orchestrator(context);
  }

  get routes(): RouteSource {
    return this.#context.routes;
  }

  async create(spec: SandboxSpec, snapshot: Snapshot): Promise<Sandbox> {
    requireCapture(this.#context.driver, spec.timeoutCapture, "autoPauseMemory");
    return this.#snapshots.using(snapshot.id, async () => {
      const source = this.#snapshots.source(snapshot);
      const taken = this.#context.ladder.take(snapshot, spec);
      const begin = <T>(id: SandboxId, work: (entry: Entry) => Promise<T>): Promise<T> => {
        const entry = newEntry(id, spec, snapshot);
        return this.#context.entries.begin(entry, () => work(entry));
      };
      const { clone, coldBecause = "its clone was of no use" } = taken;
      if (clone !== undefined) {
        const hot = await begin(clone.sandboxId, (entry) => createFromClone(this.#context, entry, clone));
        if (hot !== undefined) return hot;
      }
      const from = `its snapshot: ${coldBecause}`;
      return await begin(newSandboxId(), (entry) => create(this.#context, entry, source, from));
    });
  }

  get(id: SandboxId): Sandbox | undefined {
    const entry = this.#context.entries.get(id);
    return entry === undefined || entry.state === "killing" ? undefined : this.#shown(entry);
  }

  list(): Sandbox[] {
    return this.#context.entries
      .all()
      .filter((entry) => entry.state !== "killing")
      .map((entry) => this.#shown(entry))
      .sort((a, b) => b.startedAtMs - a.startedAtMs || (a.id < b.id ? 1 : -1));
  }

  /** Returns when nothing of it runs any more and nobody finds it; what is left of it is removed after. */
  async kill(id: SandboxId): Promise<void> {
    const entry = this.#entry(id);
    const ended = end(this.#context, entry);
    await Promise.race([ended, entry.death]);
    void this.#context.background.run(`removing what is left of ${id}`, () => ended);
  }

  async pause(id: SandboxId, capture?: MachineCapture): Promise<void> {
    await this.#decided(id, "pause", async (entry, how) => {
      if (how === "join") await entry.outcome;
      else await this.#context.entries.begin(entry, () => pause(this.#context, entry, capture));
    });
  }

  async connect(
    id: SandboxId,
    timeoutMs?: number,
    options?: ResumeOptions,
  ): Promise<{ sandbox: Sandbox; resumed: boolean }> {
    return this.#decided(id, "connect", async (entry, how) => {
      if (how === "accept") return { sandbox: await this.#resume(entry, timeoutMs, options), resumed: true };
      if (timeoutMs !== undefined) await this.#extend(entry, timeoutMs);
      return { sandbox: entry.sandbox, resumed: false };
    });
  }

  async resume(id: SandboxId, timeoutMs?: number, options?: ResumeOptions): Promise<Sandbox> {
    return this.#decided(id, "resume", (entry) => this.#resume(entry, timeoutMs, options));
  }

  /** As connect, for traffic. One that traffic does not resume stays paused: it may have come for one that stood still, and was
   *  paused meanwhile; and one whose disk alone was kept: what the traffic is for would not be there. */
  async resumeForTraffic(id: SandboxId, timeoutMs: number): Promise<void> {
    await this.#decided(id, "connect", async (entry, how) => {
      if (how === "accept" && isResumedByTraffic(entry)) await this.#resume(entry, timeoutMs);
    });
  }

  /** Makes sure that a sandbox which runs is awake; its time goes on as it did. False: it is paused, or about to be. Errors: not-found,
   *  unavailable. */
  async wake(id: SandboxId): Promise<boolean> {
    return this.#decided(id, "wake", async (entry, how) => {
      if (how === "accept") await this.#sleeper.thaw(entry);
      return entry.state !== "pausing" && entry.state !== "paused";
    });
  }

  async setTimeout(id: SandboxId, timeoutMs: number): Promise<void> {
    await this.#decided(id, "set-timeout", (entry) => this.#setEnd(entry, Date.now() + timeoutMs));
  }

  async extendTimeout(id: SandboxId, timeoutMs: number): Promise<void> {
    await this.#decided(id, "set-timeout", (entry) => this.#extend(entry, timeoutMs));
  }

  async fork(id: SandboxId, count: number, timeoutMs?: number): Promise<ForkResult[]> {
    return this.#decided(id, "fork", (source) => fork(this.#context, { source, count, timeoutMs }));
  }

  async snapshot(
    id: SandboxId,
    env: Readonly<Record<string, string>>,
    capture: MachineCapture = "memory",
  ): Promise<Snapshot> {
    requireCapture(this.#context.driver, capture, "memory");
    return this.#decided(id, "snapshot", (entry) =>
      this.#context.entries.begin(entry, () => this.#snapshots.take(entry, env, capture)),
    );
  }

  pullImage(
    source: ImageSource,
    holder: string,
    onProgress: (progress: PullProgress) => void,
    signal: AbortSignal,
  ): Promise<Image> {
    return this.#context.store.pull(source, holder, onProgress, signal);
  }

  makeSnapshot(request: SnapshotRequest, onStart: (event: StartEvent) => void, signal: AbortSignal): Promise<Snapshot> {
    return this.#snapshots.make(request, onStart, signal);
  }

  async deleteSnapshot(snapshotId: string): Promise<void> {
    await this.#snapshots.remove(snapshotId);
    void this.#context.background.run("removing unused images", async () => {
      // Those that were killed before this was asked for hold nothing then.
      await this.#context.entries.deadGone();
      await this.#context.store.collect();
    });
  }

  releaseImages(holder: string): Promise<void> {
    return this.#context.store.release(holder);
  }

  /** Removes the snapshots that no record knows; called once all records are read. */
  async retainSnapshots(known: readonly Snapshot[]): Promise<void> {
    await this.#snapshots.retain(known);
    await removeOldAgents(
      this.#context,
      known.map((snapshot) => snapshot.agentDigest),
    );
    void this.#context.background.run("removing unused images", () => this.#context.store.collect());
  }

  async metrics(id: SandboxId, query: MetricQuery): Promise<Metric[]> {
    this.#requireKnown(id);
    return await this.#context.telemetry.metrics(id, query);
  }

  async latestMetrics(ids: readonly SandboxId[]): Promise<Map<SandboxId, Metric>> {
    const found = new Map<SandboxId, Metric>();
    for (const id of new Set(ids)) {
      const state = this.#context.entries.get(id)?.state;
      if (state === undefined || !AT_WORK_OR_REST.has(state)) continue;
      const metric = await this.#context.telemetry.latest(id);
      if (metric !== undefined) found.set(id, metric);
    }
    return found;
  }

  async logs(id: SandboxId, query: LogQuery): Promise<LogEntry[]> {
    this.#requireKnown(id);
    const entry = this.#context.entries.get(id);
    if (entry !== undefined) await this.#context.collector.refresh(entry);
    return await this.#context.telemetry.logs(id, query);
  }

  stats(): NodeStats {
    const states = this.#context.entries.all().flatMap((entry) => (entry.isDead ? [] : [entry.state]));
    const paused = states.filter((state) => state === "paused").length;
    const slots = this.#context.slots.stats();
    return {
      running: states.length - paused,
      paused,
      slotsFree: slots.free,
      slotsTotal: slots.total,
      frozen: states.filter((state) => state === "frozen").length,
      ready: this.#context.ladder.stats(),
    };
  }

  /** Ends what stands ready, and keeps nothing ready any more; requests are served without. Repeatable. */
  endReady(): Promise<void> {
    return this.#context.ladder.close();
  }

  /** Waits for what is under way; sandboxes go on without this process. */
  async close(): Promise<void> {
    await Promise.all([this.#reaper.close(), this.#memoryGuard.close(), this.#sleeper.close()]);
    await this.#context.entries.settled();
    await this.#context.ladder.close();
    await this.#context.collector.close();
    await this.#context.background.close();
    for (const entry of this.#context.entries.all()) entry.incarnation?.guest.close();
  }

  #shown({ sandbox }: Entry): Sandbox {
    if (sandbox.state !== "paused") return sandbox;
    const expiry = expiryOf(sandbox, this.#context.pausedRetentionMs);
    return expiry === undefined ? sandbox : { ...sandbox, removeAtMs: expiry.atMs };
  }

  /** Of one that is there, or has ended not too long ago, something may be kept. */
  #requireKnown(id: SandboxId): void {
    if (this.#context.entries.get(id) === undefined && !this.#context.telemetry.hasEnded(id)) throw sandboxNotFound(id);
  }

  #entry(id: SandboxId): Entry {
    const entry = this.#context.entries.get(id);
    if (entry === undefined || entry.isDead) throw sandboxNotFound(id);
    return entry;
  }

  /** Acts on a request as soon as it can be carried out, is so already, or can join what is under way; throws when it is
   *  refused. `act` is called in the very turn of the event loop in which it was decided. */
  async #decided<T>(
    id: SandboxId,
    request: LifecycleRequest,
    act: (entry: Entry, how: "accept" | "already" | "join") => Promise<T>,
  ): Promise<T> {
    for (;;) {
      const entry = this.#entry(id);
      const decision = decide(entry.state, request);
      switch (decision.kind) {
        case "accept":
        case "already":
        case "join":
          return await act(entry, decision.kind);
        case "wake":
          await this.#sleeper.thaw(entry);
          break;
        case "wait":
          if (entry.operation === undefined)
            throw new AenvError("internal", `sandbox "${id}" is stuck: ${entry.state}`);
          await entry.operation;
          break;
        case "refuse":
          if (decision.error === "not-found") throw sandboxNotFound(id);
          throw new AenvError("conflict", `Sandbox "${id}" ${decision.reason}`);
      }
    }
  }

  async #resume(entry: Entry, timeoutMs: number | undefined, options?: ResumeOptions): Promise<Sandbox> {
    if (options?.reboot) requireCapture(this.#context.driver, "disk", "memory");
    const sandbox = await this.#context.entries.begin(entry, () => resume(this.#context, entry, timeoutMs, options));
    // Somebody deleted it meanwhile: it goes as soon as it is up.
    if (entry.doomed) throw sandboxNotFound(entry.id);
    return sandbox;
  }

  async #extend(entry: Entry, timeoutMs: number): Promise<void> {
    const endAtMs = Date.now() + timeoutMs;
    if (endAtMs > entry.sandbox.endAtMs) await this.#setEnd(entry, endAtMs);
  }

  async #setEnd(entry: Entry, endAtMs: number): Promise<void> {
    entry.update({ endAtMs });
    entry.retryExpiryAtMs = 0;
    await this.#context.journal.save(entry.record);
  }

  /** Carries out the timeout action. Precondition: nothing is under way, in this very turn of the event loop. */
  async #expire(entry: Entry): Promise<void> {
    const { sandbox, doomed } = entry;
    const action = doomed ? "kill" : expiryOf(sandbox, this.#context.pausedRetentionMs)?.action;
    if (action === "pause") {
      await this.#context.entries.begin(entry, () => pause(this.#context, entry, sandbox.spec.timeoutCapture));
      return;
    }
    if (!doomed && sandbox.state === "paused") {
      this.#context.logger.info("a paused sandbox has been kept long enough and is removed", {
        sandboxId: entry.id,
        generation: sandbox.generation,
        reason: `paused since ${new Date(sandbox.endAtMs).toISOString()}`,
      });
    }
    await end(this.#context, entry);
  }
}
