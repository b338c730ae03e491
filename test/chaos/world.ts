import { cpSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { Cleanup } from "#lib/cleanup";
import { connectKeeper, type Keeper } from "#lib/keeper";
import { startTicks } from "#lib/proc";
import { localRunner } from "#lib/spawn";
import { type SwapArea, swapAreas } from "#lib/swap-files";
import { dataDir } from "../../scripts/setup/data-dir.ts";
import { startServer } from "../../scripts/setup/server.ts";
import { dataPaths } from "../../src/config.ts";
import { FAULT_FILES, FAULTS_VARIABLE, type FaultFired, type FaultOrder } from "../../src/server/faults.ts";
import { type Answer, call } from "../e2e/calls.ts";
import { metric } from "../e2e/host.ts";
import { startTestServer, type TestConfig, type TestServer, until } from "../e2e/start.ts";
import { GUEST_PORT, READY_COMMAND, startCommand, type Told } from "./content.ts";
import { Disk } from "./disk.ts";
import type { Setting } from "./operations.ts";

export const TEMPLATE = "chaos";
const SERVICES = ["keeper", "blobd", "aenvd", "edge"] as const;
const BACK_MS = 60_000;
/** How long the keeper's own restart is waited for: a little longer than it waits after the first of several deaths. */
const OWN_RESTART_MS = 130;
const CALL_MS = 60_000;
/** After clones have died again and again the server waits up to a minute before it makes the next. */
const REACH_MS = 90_000;
const LAST_LINES = 60;

const SETTINGS: Readonly<Record<Setting, Partial<TestConfig>>> = {
  bare: { memoryBudgetMib: 0, idleAfterMs: 0 },
  ready: { memoryBudgetMib: 1024, idleAfterMs: 400, swapMaxMib: 256 },
};

/** An answer, or that there was none. */
export type Outcome<T> = Answer<T> | { readonly status: 0; readonly body: undefined; readonly error: unknown };

/** A server with armed faults on a file system of its own, and the orders given to it. */
export class World implements AsyncDisposable {
  readonly server: TestServer;
  readonly disk: Disk;
  readonly #faults: string;
  readonly #keeper: Keeper;
  #config: TestConfig;
  builds = 0;
  #upgrades = 0;
  #downSinceMs: number | undefined;

  private constructor(server: TestServer, disk: Disk, faults: string) {
    this.server = server;
    this.disk = disk;
    this.#faults = faults;
    this.#config = server.config;
    this.#keeper = connectKeeper(dataDir(server.dataDir).keeperSocket);
  }

  /** With the template that all sandboxes of a run are made from. */
  static async open(): Promise<World> {
    await using undo = new Cleanup();
    const disk = await Disk.make();
    undo.add(() => disk[Symbol.asyncDispose]());
    const faults = mkdtempSync(join(tmpdir(), "aenv-faults-"));
    undo.add(() => rmSync(faults, { recursive: true, force: true }));
    const server = await startTestServer({
      path: disk.dataDir,
      settings: { slotsReady: 2, ...SETTINGS.bare },
      env: { [FAULTS_VARIABLE]: faults },
    });
    undo.add(() => server.stop());
    const world = new World(server, disk, faults);
    await world.build();
    undo.keep();
    return world;
  }

  /** Has the server run under a setting. */
  async be(setting: Setting): Promise<void> {
    this.#config = { ...this.#config, ...SETTINGS[setting] };
    await this.start();
  }

  /** Starts what does not run, as `npm run up` does, and waits until all is as it is to be. */
  async start(): Promise<void> {
    await startServer(dataDir(this.server.dataDir), this.#config, { [FAULTS_VARIABLE]: this.#faults });
  }

  /** Replaces the programs by those of another build, as `npm run up` does. Throws when that is cut short. */
  async upgrade(what: "all" | "aenvd"): Promise<void> {
    this.#upgrades += 1;
    const { binDir } = this.server.config;
    const other = join(this.#faults, "programs");
    if (what === "all" && !existsSync(other)) cpSync(binDir, other, { recursive: true });
    const isOther = (this.#config.binDir === other) !== (what === "all");
    this.#config = { ...this.#config, commit: `test-${this.#upgrades}`, binDir: isOther ? other : binDir };
    await this.start();
  }

  /** What the server has of the host's swap. */
  swap(): SwapArea[] {
    const { swap } = dataPaths(this.server.dataDir);
    return swapAreas(readFileSync("/proc/swaps", "utf8")).filter(({ path }) => dirname(path) === swap);
  }

  /** True when the host has swap besides. */
  hasOtherSwap(): boolean {
    return swapAreas(readFileSync("/proc/swaps", "utf8")).length > this.swap().length;
  }

  /** Takes that away, as its host may. */
  async withoutSwap(): Promise<void> {
    for (const { path } of this.swap()) await localRunner().run(["swapoff", path]);
  }

  /** Waits until a figure of the server's metrics is so large. */
  async reaches(name: string, least: number): Promise<void> {
    await until(`${name} of ${least}`, async () => (await metric(this.server, name)) >= least, REACH_MS);
  }

  order(orders: readonly FaultOrder[]): void {
    writeFileSync(join(this.#faults, FAULT_FILES.fired), "");
    writeFileSync(join(this.#faults, FAULT_FILES.orders), JSON.stringify(orders));
  }

  fired(): FaultFired[] {
    return linesOf(join(this.#faults, FAULT_FILES.fired)).map((line) => JSON.parse(line) as FaultFired);
  }

  /** All points that any of the servers of this run has passed. */
  passed(): Set<string> {
    return new Set(linesOf(join(this.#faults, FAULT_FILES.passed)));
  }

  async call<T>(method: string, path: string, body?: unknown): Promise<Outcome<T>> {
    const timeout = Promise.withResolvers<never>();
    const timer = setTimeout(() => timeout.reject(new Error(`no answer within ${CALL_MS} ms`)), CALL_MS);
    try {
      return await Promise.race([call<T>(this.server, method, path, body), timeout.promise]);
    } catch (error) {
      return { status: 0, body: undefined, error };
    } finally {
      clearTimeout(timer);
    }
  }

  /** What the program in a sandbox tells, after writing a new seed where one is given. */
  async ask(id: string, seed?: string): Promise<Told> {
    const response = await fetch(`${this.server.url}/${seed ?? ""}`, {
      method: seed === undefined ? "GET" : "POST",
      headers: { "E2b-Sandbox-Id": id, "E2b-Sandbox-Port": String(GUEST_PORT) },
      signal: AbortSignal.timeout(20_000),
    });
    if (response.status !== 200) throw new Error(`${id} answers ${response.status}: ${await response.text()}`);
    return (await response.json()) as Told;
  }

  /** Builds the template anew. Its status, or "unknown" when the server did not stay to tell. */
  async build(): Promise<string> {
    this.builds += 1;
    const made = await this.call<{ templateID: string; buildID: string }>("POST", "/v3/templates", { name: TEMPLATE });
    if (made.status >= 300 || made.body === undefined) return "unknown";
    const path = `/templates/${made.body.templateID}/builds/${made.body.buildID}`;
    const plan = {
      fromImage: this.server.baseImage,
      startCmd: startCommand(String(this.builds)),
      readyCmd: READY_COMMAND,
    };
    const begun = await this.call("POST", `/v2${path}`, plan);
    if (begun.status >= 300 || begun.status === 0) return "unknown";
    for (const giveUpAtMs = Date.now() + CALL_MS; Date.now() < giveUpAtMs; await sleep(100)) {
      const { body } = await this.call<{ status: string }>("GET", `${path}/status`);
      if (body?.status === "ready" || body?.status === "error") return body.status;
    }
    throw new Error(`the build at ${path} comes to no end`);
  }

  pids(): ReadonlyMap<string, number> {
    return new Map(SERVICES.map((name) => [name, this.#pid(name)]));
  }

  /** Waits until none of the processes of `gone` is there any more, and all services are, and answer. */
  async back(gone: readonly number[]): Promise<void> {
    const sinceMs = Date.now();
    while (gone.some(isAlive)) {
      if (Date.now() > sinceMs + BACK_MS) throw new Error(`${gone.filter(isAlive)} should have died`);
      await sleep(5);
    }
    for (; !(await this.#answers()); await sleep(10)) {
      if (Date.now() > sinceMs + BACK_MS) throw new Error(`the server does not come back: ${this.#down()} is down`);
      await this.revive();
    }
  }

  /** The outcome of `work`, in whose middle services may die: they are there again as soon as they can be. */
  async attend<T>(work: Promise<T>): Promise<T> {
    let isOver = false;
    const over = work.then(
      () => {
        isOver = true;
      },
      () => {
        isOver = true;
      },
    );
    for (; !isOver; await Promise.race([over, sleep(10)])) await this.revive();
    return await work;
  }

  /** Starts what the keeper would start only later, for having died so often. Who starts the keeper is the edge or blobd; nobody, when they
   *  are down too. */
  async revive(): Promise<void> {
    const down = this.#down();
    if (down.length === 0) this.#downSinceMs = undefined;
    else if (down.length === SERVICES.length) await this.start();
    else if (!down.includes("keeper")) {
      this.#downSinceMs ??= Date.now();
      if (Date.now() < this.#downSinceMs + OWN_RESTART_MS) return;
      for (const name of down) await this.#keeper.restartService(name).catch(() => {});
      this.#downSinceMs = undefined;
    }
  }

  /** The end of aenvd's log. */
  lastWords(): string {
    return linesOf(dataDir(this.server.dataDir).logFile("aenvd")).slice(-LAST_LINES).join("\n");
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.order([]);
    await this.#keeper.close();
    await this.server.stop();
    await this.disk[Symbol.asyncDispose]();
    rmSync(this.#faults, { recursive: true, force: true });
  }

  #pid(name: string): number {
    try {
      return this.server.pid(name);
    } catch {
      return 0;
    }
  }

  #down(): string[] {
    return SERVICES.filter((name) => !isAlive(this.#pid(name)));
  }

  async #answers(): Promise<boolean> {
    if (this.#down().length > 0) return false;
    const { status } = await this.call("GET", "/v2/sandboxes?limit=1");
    return status === 200 && this.#down().length === 0;
  }
}

function isAlive(pid: number): boolean {
  return pid > 1 && startTicks(pid) !== undefined;
}

function linesOf(path: string): string[] {
  try {
    return readFileSync(path, "utf8")
      .split("\n")
      .filter((line) => line !== "");
  } catch {
    return [];
  }
}
