import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { Cleanup } from "#lib/cleanup";
import { connectKeeper, type Keeper } from "#lib/keeper";
import { startTicks } from "#lib/proc";
import { dataDir } from "../../scripts/setup/data-dir.ts";
import { FAULT_FILES, FAULTS_VARIABLE, type FaultFired, type FaultOrder } from "../../src/server/faults.ts";
import { type Answer, call } from "../e2e/calls.ts";
import { startTestServer, type TestServer } from "../e2e/start.ts";
import { GUEST_PORT, READY_COMMAND, startCommand, type Told } from "./content.ts";
import { Disk } from "./disk.ts";

export const TEMPLATE = "chaos";
const SERVICES = ["keeper", "blobd", "aenvd", "edge"] as const;
const BACK_MS = 60_000;
/** How long the keeper's own restart is waited for; after several deaths it waits longer, and is told not to. */
const OWN_RESTART_MS = 400;
const CALL_MS = 60_000;

/** An answer, or that there was none. */
export type Outcome<T> = Answer<T> | { readonly status: 0; readonly body: undefined; readonly error: unknown };

/** A server with armed faults on a file system of its own, and the orders given to it. */
export class World implements AsyncDisposable {
  readonly server: TestServer;
  readonly disk: Disk;
  readonly #faults: string;
  readonly #keeper: Keeper;
  builds = 0;

  private constructor(server: TestServer, disk: Disk, faults: string) {
    this.server = server;
    this.disk = disk;
    this.#faults = faults;
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
      // Nothing stands ready: each round's points are passed by what the round does, and by nothing else.
      settings: { slotsReady: 2, memoryBudgetMib: 0, idleAfterMs: 0 },
      env: { [FAULTS_VARIABLE]: faults },
    });
    undo.add(() => server.stop());
    const world = new World(server, disk, faults);
    await world.build();
    undo.keep();
    return world;
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

  /** Waits until none of the processes of `gone` is there any more, and all services are, and answer. The keeper starts them;
   *  it is started by the edge or aenvd, and only when nobody is left to do so by this. */
  async back(gone: readonly number[]): Promise<void> {
    const sinceMs = Date.now();
    while (gone.some(isAlive)) {
      if (Date.now() > sinceMs + BACK_MS) throw new Error(`${gone.filter(isAlive)} should have died`);
      await sleep(5);
    }
    for (let downSinceMs = Date.now(); !(await this.#answers()); await sleep(25)) {
      if (Date.now() > sinceMs + BACK_MS) throw new Error(`the server does not come back: ${this.#down()} is down`);
      const down = this.#down();
      if (down.length === SERVICES.length) {
        await this.server.restart();
      } else if (!down.includes("keeper") && down.length > 0 && Date.now() > downSinceMs + OWN_RESTART_MS) {
        for (const name of down) await this.#keeper.restartService(name).catch(() => {});
        downSinceMs = Date.now();
      }
    }
  }

  /** Has what has died started again, and waits a moment. */
  async nudge(): Promise<void> {
    const down = this.#down();
    if (down.length === SERVICES.length) await this.server.restart();
    else if (!down.includes("keeper")) {
      for (const name of down) await this.#keeper.restartService(name).catch(() => {});
    }
    await sleep(25);
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
