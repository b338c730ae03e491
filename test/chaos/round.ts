import { setTimeout as sleep } from "node:timers/promises";
import type { FaultPoint } from "#lib/fault";
import { seeded } from "#lib/seeded";
import type { FaultFired } from "../../src/server/faults.ts";
import { assertNothingLost } from "../e2e/host.ts";
import { FRESH } from "./content.ts";
import { type Answer, carryOut, copiesOf, type Doing, type Done, judge, requirePromise } from "./doing.ts";
import { allowedStates, endsMachine, sandboxOf } from "./expectation.ts";
import { Model } from "./model.ts";
import { factsOf, type Operation, type State } from "./operations.ts";
import type { Plan } from "./plan.ts";
import { isAtRest, readRecords, strays } from "./strays.ts";
import { Violation } from "./violation.ts";
import type { World } from "./world.ts";

/** So many sandboxes stay for the rounds to come. */
const KEPT = 4;
const REMOVES: readonly FaultPoint[] = ["checkpoint.undescribed", "snapshot.removed"];
const FIRES_MS = 30_000;
const SETTLES_MS = 30_000;

/** Carries out one round after the other, and throws a Violation when a crash has done harm. */
export class Rounds {
  readonly #world: World;
  readonly #model: Model;
  /** Processes killed, by operation and victim; 0: none was found. */
  readonly #killed = new Map<string, number>();

  constructor(world: World) {
    this.#world = world;
    this.#model = new Model(world);
  }

  get kills(): number {
    return [...this.#killed.values()].reduce((sum, count) => sum + count, 0);
  }

  /** `OPERATION/VICTIM` → processes killed; 0: none was found. */
  get killed(): ReadonlyMap<string, number> {
    return this.#killed;
  }

  /** One round; `seed` decides what the plan leaves open. Returns what happened, for people. */
  async run(plan: Plan, seed: number): Promise<string> {
    const random = seeded(seed);
    const laps = new Laps();
    await this.#world.be(factsOf(plan.operation).under);
    await this.#makePassable(plan);
    const doings: Doing[] = [];
    for (const operation of [plan.operation, ...(plan.beside ?? [])]) {
      const taken = new Set(doings.map(({ subject }) => subject));
      doings.push(await this.#prepare(operation, taken, random));
    }
    laps.end("prepared");
    const pids = this.#world.pids();
    this.#world.order(plan.orders);
    const answers = await this.#world.attend(Promise.all(doings.map((doing) => carryOut(this.#world, doing))));
    const fired = await this.#allFired(plan);
    laps.end("done");
    const gone = new Set(fired.flatMap(({ kill }) => kill ?? []));
    await this.#world.back([...gone].flatMap((name) => pids.get(name) ?? []));
    if (plan.operation.startsWith("upgrade")) await this.#world.start();
    laps.end("back");
    for (const one of fired) this.#count(plan.operation, one);
    const done = doings.map((doing, at): Done => ({ ...doing, ...judge(doing, answers[at] as Answer, fired) }));
    for (const one of done) requirePromise(one, fired);
    await this.#settled(done, fired);
    laps.end("compared");
    for (const one of done) if (one.operation === "snapshot") await this.#verifySnapshots(one);
    await this.#verifyAll(doings, random);
    laps.end("looked into");
    return `${done.map(({ operation, verdict, said }) => `${operation} ${verdict} (${said})`).join(", ")}; ${laps}`;
  }

  /** Resumes and looks at all that are left, and ends them. */
  async finish(): Promise<void> {
    for (const [id, { state }] of [...this.#model.sandboxes]) {
      if (state === "paused") await this.#model.resume(id);
      await this.#model.verify(id);
      await this.#model.kill(id);
    }
    await this.#nothingStray();
  }

  /** Some points are passed only where something is there, or is not. */
  async #makePassable({ operation, orders }: Plan): Promise<void> {
    // A build removes the one before when nobody uses it.
    const removes = operation === "build" && orders.some(({ point }) => REMOVES.includes(point));
    if (removes) await this.#model.empty();
    // One for each pass, beside what the operation ends.
    const passes = Math.max(...orders.map(({ point, after = 0 }) => (point === "recover.sandbox" ? after + 1 : 0)));
    if (passes === 0) return;
    await this.#model.atLeast(passes + 1);
    // Those that are there now use an older one.
    if (removes) await this.#model.build();
  }

  async #prepare(operation: Operation, taken: ReadonlySet<string | undefined>, random: () => number): Promise<Doing> {
    if (operation === "upgrade-empty") await this.#model.leaveSwap();
    const { subject: kind } = factsOf(operation);
    const subject = kind === undefined ? undefined : await this.#model.subject(kind, taken, random);
    if (operation === "hot-create" || operation === "upgrade-ready") await this.#model.ready();
    const content = subject === undefined ? FRESH : (this.#model.sandboxes.get(subject)?.content ?? FRESH);
    return { operation, subject, content };
  }

  #count(operation: Operation, { kill = [], killed }: FaultFired): void {
    const what = `${operation}/${kill.join("+")}`;
    if (kill.length > 0) this.#killed.set(what, (this.#killed.get(what) ?? 0) + killed);
  }

  /** What goes on after an answer may pass its point a little later, and a delayed kill comes when it comes. */
  async #allFired({ orders }: Plan): Promise<FaultFired[]> {
    const giveUpAtMs = Date.now() + FIRES_MS;
    let fired = this.#world.fired();
    for (; fired.length < orders.length; fired = this.#world.fired()) {
      if (Date.now() > giveUpAtMs) throw new Error(`${orders[fired.length]?.point} was not passed`);
      // Those after the first are for the servers that come back.
      await this.#world.revive();
      await sleep(10);
    }
    return fired;
  }

  /** Waits until nothing is under way, and everything is as it may be. */
  async #settled(done: readonly Done[], fired: readonly FaultFired[]): Promise<void> {
    await this.#atRest();
    await this.#nothingStray();
    const found = await this.#list();
    for (const one of done) {
      if (one.subject === undefined) continue;
      const state: State = found.get(one.subject) ?? "gone";
      const allowed = allowedStates(one.operation, one.verdict, fired, one.subject);
      if (!allowed.includes(state)) {
        const harm = state === "gone" ? "lost" : "wrong";
        throw new Violation(harm, `${one.subject} is ${state}, not ${allowed.join(" or ")}: ${one.said}`);
      }
      this.#model.settle(one.subject, state);
    }
    const ended = new Set(fired.flatMap((one) => (endsMachine(one) ? [sandboxOf(one.machineId)] : [])));
    for (const id of done.flatMap(({ promised }) => promised)) {
      if (found.get(id) !== "running" && !ended.has(id)) throw new Violation("lost", `${id} was promised`);
    }
    await this.#takeIn(done, found);
    for (const [id, { state }] of this.#model.sandboxes) {
      const is = found.get(id);
      // Who comes to rest first is not always who the round is about.
      if (is === undefined && state === "running" && ended.has(id)) this.#model.settle(id, "gone");
      else if (is === undefined) throw new Violation("lost", `${id}, which was ${state}`);
      else if (is !== state) throw new Violation("wrong", `${id} is ${is}, not ${state}`);
    }
  }

  /** Those that operations have made: no more than were asked for, each as one of them would have made it. */
  async #takeIn(done: readonly Done[], found: ReadonlyMap<string, State>): Promise<void> {
    const newcomers = [...found].filter(([id]) => !this.#model.sandboxes.has(id));
    const most = done.reduce((sum, one) => sum + (one.verdict === "unknown" ? copiesOf(one) : one.promised.length), 0);
    if (newcomers.length > most) throw new Violation("doubled", `there are ${newcomers.length} new, not ${most}`);
    const makers = done.filter((one) => copiesOf(one) > 0);
    for (const [id, state] of newcomers) {
      if (state !== "running") throw new Violation("wrong", `${id} is new and ${state}`);
      const { seed } = await this.#model.told(id);
      this.#model.add(id, makers.find(({ content }) => content.seed === seed)?.content ?? FRESH);
    }
  }

  /** An answered capture is there, once, with the bytes that the sandbox had; another is there whole or not at all. */
  async #verifySnapshots({ subject = "", content, verdict, said }: Done): Promise<void> {
    const count = await this.#model.useSnapshots(subject, content);
    if (verdict === "done" && count === 0) throw new Violation("lost", `the snapshot of ${subject}: ${said}`);
    if (count > (verdict === "refused" ? 0 : 1)) throw new Violation("doubled", `${count} snapshots of ${subject}`);
  }

  async #verifyAll(doings: readonly Doing[], random: () => number): Promise<void> {
    const { sandboxes } = this.#model;
    for (const { subject = "" } of doings) {
      if (sandboxes.get(subject)?.state === "paused" && random() < 0.5) await this.#model.resume(subject);
    }
    for (const [id, { state }] of sandboxes) if (state === "running") await this.#model.verify(id);
    const ids = [...sandboxes.keys()];
    for (const id of ids.slice(0, Math.max(0, ids.length - KEPT))) await this.#model.kill(id);
  }

  async #atRest(): Promise<void> {
    for (const giveUpAtMs = Date.now() + SETTLES_MS; ; await sleep(25)) {
      const records = readRecords(this.#world.server);
      if (isAtRest(this.#world.server, records)) return;
      if (Date.now() > giveUpAtMs) {
        const states = records.sandboxes.map(({ sandbox }) => `${sandbox.id} ${sandbox.state}`);
        throw new Violation("wrong", `it does not come to rest: ${states.join(", ")}`);
      }
    }
  }

  async #list(): Promise<Map<string, "running" | "paused">> {
    const answer = await this.#world.call<{ sandboxID: string; state: "running" | "paused" }[]>(
      "GET",
      "/v2/sandboxes?limit=100",
    );
    if (answer.status !== 200 || answer.body === undefined) throw new Error(`the list answers ${answer.status}`);
    const found = new Map(answer.body.map(({ sandboxID, state }) => [sandboxID, state]));
    if (found.size !== answer.body.length) throw new Violation("doubled", "a sandbox is listed twice");
    return found;
  }

  /** Everything of the server on this host belongs to something that it knows, sooner or later. */
  async #nothingStray(): Promise<void> {
    const { server } = this.#world;
    try {
      await assertNothingLost(server);
    } catch (error) {
      throw new Violation("orphan", error instanceof Error ? error.message : String(error));
    }
    for (const giveUpAtMs = Date.now() + SETTLES_MS; ; await sleep(50)) {
      const found = await strays(server, readRecords(server));
      if (found.length === 0) return;
      if (Date.now() > giveUpAtMs) throw new Violation("orphan", found.join("; "));
    }
  }
}

/** What took how long. */
class Laps {
  readonly #said: string[] = [];
  #sinceMs = performance.now();

  end(what: string): void {
    const nowMs = performance.now();
    this.#said.push(`${what} ${Math.round(nowMs - this.#sinceMs)}`);
    this.#sinceMs = nowMs;
  }

  toString(): string {
    return this.#said.join(", ");
  }
}
