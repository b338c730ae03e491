import assert from "node:assert/strict";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { createServer, type Server } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { MemoryCatalog, type RecordKind, type WriteOptions } from "#catalog";
import {
  AenvError,
  DEFAULT_RESOURCES,
  type ErrorKind,
  errorKind,
  type Sandbox,
  type SandboxId,
  type SandboxSpec,
  type SandboxState,
  type Snapshot,
} from "#domain";
import { createFakeDriver, FakeHost } from "#driver/fake";
import { AGENT_PORT } from "#guest";
import { silentLogger } from "#lib/log";
import { Semaphore } from "#lib/mutex";
import type { HeldSlot, Slot, Slots } from "#network";
import type { Store } from "#store";
import { Telemetry } from "#telemetry";
import { Background } from "../background.ts";
import { capture } from "../checkpoints.ts";
import { Collector } from "../collector.ts";
import type { Context } from "../context.ts";
import { Entries } from "../entries.ts";
import { Orchestrator } from "../orchestrator.ts";
import { NodePaths } from "../paths.ts";
import { Journal, type SandboxRecord } from "../record.ts";
import { Routes } from "../routes.ts";

/** What a test can make fail, once. */
export type Step = "journal" | "slot" | "mount" | "restore" | "health" | "init" | "checkpoint" | "sync" | "release";

const IMAGE = "blake3:image";

/** Failures waiting to happen: the next call of a step gets its oldest. */
class Script {
  readonly #failures = new Map<Step, (Error | undefined)[]>();

  /** `after`: how many calls still succeed. */
  fail(step: Step, { after = 0, times = 1 } = {}): void {
    const queue = this.#failures.get(step) ?? [];
    for (let at = 0; at < after; at += 1) queue.push(undefined);
    for (let at = 0; at < times; at += 1) queue.push(new AenvError("exhausted", `${step} fails as the test wants`));
    this.#failures.set(step, queue);
  }

  mayFail(step: Step): void {
    const error = this.#failures.get(step)?.shift();
    if (error !== undefined) throw error;
  }
}

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
  #node: { orchestrator: Orchestrator; context: Context } | undefined;

  private constructor(dataDir: string) {
    this.dataDir = dataDir;
    this.paths = new NodePaths(dataDir);
    this.catalog = new ScriptedCatalog(this.script);
    this.slots = new FakeSlots(this.script, this.agents);
  }

  /** A node with a snapshot to start from. */
  static async open(): Promise<Bench> {
    const bench = new Bench(await mkdtemp(join(tmpdir(), "aenv-orchestrator-")));
    await bench.start();
    const driver = bench.context.driver;
    const machine = await driver.boot({ id: "source" } as never);
    await capture(driver, machine, bench.paths.snapshot(SNAPSHOT.id), SNAPSHOT);
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
    this.slots.forget();
    const driver = createFakeDriver({ host: this.host });
    const { restore } = driver;
    driver.restore = async (...args) => {
      this.script.mayFail("restore");
      return restore.apply(driver, args);
    };
    const entries = new Entries();
    const telemetry = await Telemetry.open(this.paths.telemetry, Date.now);
    const context: Context = {
      driver,
      slots: this.slots,
      store: this.#store(),
      paths: this.paths,
      routes: new Routes(),
      admission: new Semaphore(8),
      readyTimeoutMs: 300,
      journal: new Journal(this.catalog),
      logger: silentLogger,
      entries,
      telemetry,
      collector: new Collector({ telemetry, entries, logger: silentLogger }),
      background: new Background(silentLogger),
      agentDigest: "agent",
      envdVersion: "0",
    };
    this.#node = { context, orchestrator: await Orchestrator.start(context) };
  }

  create(change: Partial<SandboxSpec> = {}): Promise<Sandbox> {
    return this.orchestrator.create(specOf(change), SNAPSHOT);
  }

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
    };
    return Object.fromEntries(Object.entries(all).filter(([, items]) => items.length > 0));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#node?.orchestrator.close();
    await this.agents.close();
    await rm(this.dataDir, { recursive: true, force: true });
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

const SNAPSHOT: Snapshot = {
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
  await capture(bench.context.driver, machine, bench.paths.checkpoint(machineId), SNAPSHOT);
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

/** Answers as the agents of all machines, each at the address of its slot. */
class FakeAgents {
  readonly #servers = new Map<string, Server>();
  readonly #script: Script;
  /** Ids the agents were told, in order. */
  readonly told: string[] = [];

  constructor(script: Script) {
    this.#script = script;
  }

  async listen(address: string): Promise<void> {
    const server = createServer(async (request, response) => {
      let body = "";
      for await (const chunk of request) body += chunk;
      if (request.url === "/telemetry") return response.end('{"entries":[],"more":false}');
      try {
        this.#script.mayFail(request.url === "/init" ? "init" : "health");
        if (request.url === "/init") this.told.push(JSON.parse(body).sandboxId);
        response.writeHead(204).end();
      } catch {
        response.writeHead(500).end("as the test wants");
      }
    });
    await new Promise<void>((resolve, reject) => {
      server.once("error", reject);
      server.listen(AGENT_PORT, address, resolve);
    });
    this.#servers.set(address, server);
  }

  async close(address?: string): Promise<void> {
    for (const [of, server] of this.#servers) {
      if (address !== undefined && of !== address) continue;
      this.#servers.delete(of);
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    }
  }
}

class FakeSlots implements Slots {
  readonly #script: Script;
  readonly #agents: FakeAgents;
  readonly #held = new Map<number, Slot>();
  /** Held by an earlier server. */
  readonly #known = new Set<number>();
  /** Loopback addresses of this run: others may test beside. */
  readonly #network = `127.${100 + (process.pid % 100)}.${Math.floor(Math.random() * 255)}`;

  constructor(script: Script, agents: FakeAgents) {
    this.#script = script;
    this.#agents = agents;
  }

  heldIndexes(): number[] {
    return [...this.#held.keys()];
  }

  /** The server that held them is gone; they are not. */
  forget(): void {
    for (const index of this.#held.keys()) this.#known.add(index);
    this.#held.clear();
  }

  async acquire(): Promise<Slot> {
    this.#script.mayFail("slot");
    let index = 0;
    while (this.#held.has(index)) index += 1;
    return this.#hold(index);
  }

  async release(slot: Slot): Promise<void> {
    if (this.#held.get(slot.index) !== slot) return;
    this.#held.delete(slot.index);
    await this.#agents.close(slot.hostAddress);
  }

  async recover(held: readonly HeldSlot[]): Promise<Slot[]> {
    const found: Slot[] = [];
    for (const index of new Set(held.map((slot) => slot.index))) {
      if (this.#known.delete(index)) found.push(await this.#hold(index));
    }
    for (const index of this.#known) await this.#agents.close(this.#address(index));
    this.#known.clear();
    return found;
  }

  stats(): { readonly free: number; readonly total: number } {
    return { free: 200 - this.#held.size, total: 200 };
  }

  async close(): Promise<void> {}

  async #hold(index: number): Promise<Slot> {
    const slot = {
      index,
      hostAddress: this.#address(index),
      netnsPath: `/run/netns/fake${index}`,
      device: "eth0",
      macAddress: "02:00:00:00:00:01",
      address: "169.254.0.21/30",
      gateway: "169.254.0.22",
      gatewayMacAddress: "02:00:00:00:00:02",
      mtuBytes: 1500,
    };
    this.#held.set(index, slot);
    await this.#agents.close(slot.hostAddress);
    await this.#agents.listen(slot.hostAddress);
    return slot;
  }

  #address(index: number): string {
    return `${this.#network}.${index + 1}`;
  }
}
