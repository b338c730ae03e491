import assert from "node:assert/strict";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { basename, dirname, join } from "node:path";
import { MemoryCatalog, type RecordKind, type WriteOptions } from "#catalog";
import {
  DEFAULT_RESOURCES,
  type ErrorKind,
  errorKind,
  MIB,
  type Sandbox,
  type SandboxId,
  type SandboxSpec,
  type SandboxState,
  type Snapshot,
} from "#domain";
import type { Driver, DriverCapabilities } from "#driver";
import { createFakeDriver, FakeHost } from "#driver/fake";
import { silentLogger } from "#lib/log";
import { Semaphore } from "#lib/mutex";
import type { Store } from "#store";
import { Telemetry } from "#telemetry";
import { Background } from "../background.ts";
import { capture } from "../checkpoints.ts";
import { Collector } from "../collector.ts";
import type { Context } from "../context.ts";
import { Departures } from "../departures.ts";
import { Entries } from "../entries.ts";
import { Ladder, type LadderMemory } from "../ladder/ladder.ts";
import type { SwapRoom } from "../ladder/reclaimer.ts";
import { Orchestrator } from "../orchestrator.ts";
import { NodePaths } from "../paths.ts";
import { Journal, type SandboxRecord } from "../record.ts";
import { Routes } from "../routes.ts";
import { Life } from "./life.ts";
import { Script } from "./script.ts";
import { FakeAgents, FakeSlots } from "./slots.ts";

export type { Step } from "./script.ts";

const IMAGE = "blake3:image";

/** The machine under the orchestrator: what stays when a server dies. */
export class Bench implements AsyncDisposable {
  readonly script = new Script();
  readonly host = new FakeHost();
  readonly catalog: ScriptedCatalog;
  readonly leases = new Map<string, string>();
  readonly slots: FakeSlots;
  readonly dataDir: string;
  readonly paths: NodePaths;
  readonly agents = new FakeAgents(this.script);
  /** What may stand ready. By default nothing, so that what runs can be counted. */
  readonly memory: Mutable<LadderMemory>;
  /** Of the next server. By default none is frozen. */
  idleAfterMs: number | undefined;
  /** Where the memory of frozen ones goes. By default it stays. */
  readonly swap: SwapRoom | undefined;
  /** How long the next server keeps paused ones. By default for ever. */
  pausedRetentionMs: number | undefined;
  /** Awaited before each restore and each checkpoint of a restored machine. */
  pace: () => Promise<void> = async () => {};
  /** Machines that were captured twice at once, which no driver has to stand. */
  readonly overlaps: string[] = [];
  /** What the driver says of checkpoints of the disk alone. */
  diskCapture: "complete" | "flushed" | undefined = "complete";
  readonly #readyTimeoutMs: number;
  #node: { orchestrator: Orchestrator; context: Context } | undefined;
  #life = new Life();
  /** What works by itself, and ends with the server. */
  #working: readonly { close(): Promise<void> }[] = [];

  private constructor(
    dataDir: string,
    { memoryBudgetMib = 0, idleAfterMs, swap, readyTimeoutMs = 1_000 }: BenchOptions,
  ) {
    this.#readyTimeoutMs = readyTimeoutMs;
    this.dataDir = dataDir;
    this.idleAfterMs = idleAfterMs;
    this.swap = swap;
    const availableBytes = 16 * 1024 * MIB;
    this.memory = { budgetBytes: memoryBudgetMib * MIB, reserveBytes: 0, availableBytes: () => availableBytes };
    this.paths = new NodePaths(dataDir);
    this.catalog = new ScriptedCatalog(this.script);
    this.slots = new FakeSlots(this.script, this.agents);
  }

  /** A node with a snapshot to start from. */
  static async open(options: BenchOptions = {}): Promise<Bench> {
    const bench = new Bench(await mkdtemp(join(tmpdir(), "aenv-orchestrator-")), options);
    await bench.start();
    const driver = bench.context.driver;
    const machine = await driver.boot({ id: "source" } as never);
    await capture(driver, machine, bench.paths.snapshot(SNAPSHOT.id), SNAPSHOT, { durable: true });
    await machine.stop();
    return bench;
  }

  get orchestrator(): Orchestrator {
    if (this.#node === undefined) throw new Error("no server runs");
    return this.#node.orchestrator;
  }

  get context(): Context {
    if (this.#node === undefined) throw new Error("no server runs");
    return this.#node.context;
  }

  /** Another server on this machine. What the last one was doing is as if it had been killed: its objects are forgotten. */
  async start(): Promise<void> {
    await this.#life.settled();
    this.slots.forget();
    const life = new Life();
    this.#life = life;
    const driver = life.hold(this.#driver(), ["boot", "restore"]);
    const entries = new Entries();
    const telemetry = await Telemetry.open(this.paths.telemetry, Date.now);
    const collector = new Collector({ telemetry, entries, logger: silentLogger });
    const launch = {
      driver,
      slots: life.hold(this.slots),
      store: life.hold(this.#store()),
      paths: this.paths,
      routes: new Routes(),
      departures: new Departures(),
      admission: new Semaphore(8),
      readyTimeoutMs: this.#readyTimeoutMs,
    };
    const ladder = new Ladder({
      launch: { ...launch, makeRoom: async () => false },
      logger: silentLogger,
      memory: this.memory,
      refillsAtOnce: 2,
      clonesMax: 4,
    });
    this.#working = [collector, ladder];
    const context: Context = {
      ...launch,
      makeRoom: () => ladder.makeRoom(),
      ladder,
      idleAfterMs: this.idleAfterMs,
      swap: this.swap,
      pausedRetentionMs: this.pausedRetentionMs,
      journal: new Journal(life.hold(this.catalog)),
      logger: silentLogger,
      entries,
      telemetry,
      collector,
      background: new Background(silentLogger),
      agentDigest: "agent",
      envdVersion: "0",
    };
    this.#node = { context, orchestrator: await Orchestrator.start(context) };
  }

  /** Ends the server as a kill does, in the middle of whatever it does. */
  die(): void {
    this.#life.end();
    void this.#node?.orchestrator.close();
    for (const part of this.#working) void part.close();
    this.#node = undefined;
  }

  create(change: Partial<SandboxSpec> = {}, snapshot: Partial<Snapshot> = {}): Promise<Sandbox> {
    return this.orchestrator.create(specOf(change), { ...SNAPSHOT, ...snapshot });
  }

  /** A snapshot as a template's build asks for one: of an image that starts nothing. */
  makeSnapshot(): Promise<Snapshot> {
    const config = { env: {}, entrypoint: [], cmd: [], user: "", workingDir: "" };
    const { resources, env, defaultUser } = SNAPSHOT;
    const image = { digest: IMAGE, sizeBytes: 1, layers: 1, config };
    const request = { image, resources, env, defaultUser, commands: {} };
    return this.orchestrator.makeSnapshot(request, () => {}, new AbortController().signal);
  }

  /** Folders that machines were restored from, or booted with: `restore` or `boot`, and whose checkpoint it was. */
  readonly started: string[] = [];
  /** Folders that machines which had been restored were captured into, to be durable. */
  readonly durable: string[] = [];

  /** Machines that run. */
  machines(): string[] {
    return [...this.host.running.keys()];
  }

  stateOf(id: SandboxId): SandboxState | undefined {
    return this.orchestrator.get(id)?.state;
  }

  async records(): Promise<SandboxRecord[]> {
    return new Journal(this.catalog).load();
  }

  /** All that is held for sandboxes, by id where it has one; empty when nothing is left. */
  async held(): Promise<Record<string, readonly unknown[]>> {
    await this.context.background.close();
    const all = {
      records: (await this.records()).map((record) => record.sandbox.id),
      entries: this.context.entries.all().map((entry) => entry.id),
      routes: this.context.routes.snapshot().routes.map((route) => route.sandboxId),
      slots: this.slots.heldIndexes(),
      leases: [...this.leases.keys()],
      machines: [...this.host.remains],
      checkpoints: await readdir(this.paths.checkpoints),
      snapshots: (await readdir(this.paths.snapshots)).filter((id) => id !== SNAPSHOT.id),
    };
    return Object.fromEntries(Object.entries(all).filter(([, items]) => items.length > 0));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#node?.orchestrator.close();
    await this.agents.close();
    await rm(this.dataDir, { recursive: true, force: true });
  }

  #driver(): Driver {
    const driver = createFakeDriver({ host: this.host });
    const { restore, boot } = driver;
    driver.restore = async (spec, dir) => {
      await this.pace();
      this.script.mayFail("restore");
      this.started.push(`restore ${basename(dirname(dir))}`);
      const machine = await restore.call(driver, spec, dir);
      const { checkpoint } = machine;
      let captures = 0;
      machine.checkpoint = async (...captured) => {
        captures += 1;
        if (captures > 1) this.overlaps.push(machine.id);
        const [dir, { durable }] = captured;
        if (durable) this.durable.push(basename(dirname(dir)));
        await this.pace();
        return await checkpoint.apply(machine, captured).finally(() => (captures -= 1));
      };
      return machine;
    };
    driver.boot = async (spec, options) => {
      this.script.mayFail("boot");
      if (options?.diskFrom !== undefined) this.started.push(`boot ${basename(dirname(options.diskFrom))}`);
      return boot.call(driver, spec, options);
    };
    const { diskCapture: _, ...others } = driver.capabilities;
    const capabilities = (): DriverCapabilities => ({
      ...others,
      ...(this.diskCapture !== undefined && { diskCapture: this.diskCapture }),
    });
    return Object.defineProperty(driver, "capabilities", { get: capabilities });
  }

  #store(): Store {
    const never = async (): Promise<never> => {
      throw new Error("the orchestrator's tests pull nothing");
    };
    const files = {
      copy: never,
      applyLayers: never,
      dataRanges: never,
      unsharedRanges: never,
      seal: never,
      packDirectory: never,
    };
    return {
      files,
      pull: never,
      importRootfsTar: never,
      mount: async (digest, leaseId) => {
        this.script.mayFail("mount");
        this.leases.set(leaseId, digest);
        return { dir: "/", file: "/dev/null" };
      },
      release: async (leaseId) => {
        this.script.mayFail("release");
        this.leases.delete(leaseId);
      },
      collect: async () => {},
      leases: async () => [...this.leases.keys()],
      sync: async () => this.script.mayFail("sync"),
      close: () => {},
    };
  }
}

interface BenchOptions {
  readonly memoryBudgetMib?: number;
  readonly idleAfterMs?: number;
  readonly swap?: SwapRoom;
  /** How long agents have to answer: short where a test wants it to pass. */
  readonly readyTimeoutMs?: number;
}

type Mutable<T> = { -readonly [K in keyof T]: T[K] };

/** What the bench's sandboxes are created from. */
export const SNAPSHOT: Snapshot = {
  id: "snapshot000000000000",
  driver: "fake",
  driverVersion: "1",
  arch: process.arch,
  formatVersion: 1,
  imageDigest: IMAGE,
  agentDigest: "agent",
  envdVersion: "0",
  initKey: "captured",
  resources: DEFAULT_RESOURCES,
  env: {},
  defaultUser: "user",
  sizeBytes: 1,
  createdAtMs: 0,
};

function specOf(change: Partial<SandboxSpec> = {}): SandboxSpec {
  return {
    templateId: "template000000000000",
    resources: DEFAULT_RESOURCES,
    env: {},
    metadata: {},
    network: { internet: true },
    timeoutMs: 60_000,
    onTimeout: "kill",
    autoResume: false,
    secure: false,
    defaultUser: "user",
    ...change,
  };
}

/** For assert.rejects. */
export function isKind(kind: ErrorKind): (error: unknown) => boolean {
  return (error) => {
    assert.equal(errorKind(error), kind, String(error));
    return true;
  };
}

export async function until(what: string, condition: () => boolean): Promise<void> {
  const giveUpAtMs = Date.now() + 10_000;
  while (!condition()) {
    if (Date.now() > giveUpAtMs) throw new Error(`${what} did not come`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

/** A checkpoint folder as a pause of this machine leaves it. */
export async function leaveCheckpoint(bench: Bench, machineId: string): Promise<void> {
  const machine = bench.host.running.get(machineId);
  if (machine === undefined) throw new Error(`no machine ${machineId} runs`);
  await capture(bench.context.driver, machine, bench.paths.checkpoint(machineId), SNAPSHOT, { durable: true });
}

class ScriptedCatalog extends MemoryCatalog {
  readonly #script: Script;

  constructor(script: Script) {
    super();
    this.#script = script;
  }

  override async put<T>(
    kind: RecordKind<T>,
    key: string,
    value: T,
    options?: WriteOptions,
  ): Promise<number | undefined> {
    this.#script.mayFail("journal");
    return super.put(kind, key, value, options);
  }
}
