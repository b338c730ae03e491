import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { setImmediate as turn } from "node:timers/promises";
import { AenvError, type ErrorKind, errorKind, type SandboxId, type Snapshot } from "#domain";
import { CheckpointError } from "#driver";
import { seeded } from "#lib/seeded";
import { Bench, SNAPSHOT } from "./testing/bench.ts";

const SEEDS = 16;
const CLIENTS = 6;
const REQUESTS_EACH = 12;
/** What a refused request may be refused for; anything else is a defect. */
const REFUSALS = new Set(["conflict", "not-found", "unavailable", "exhausted"]);

/** Clients that ask for everything of a few sandboxes in any order, with captures that fail now and then. */
class Crowd {
  readonly #bench: Bench;
  readonly #random: () => number;
  readonly #known: SandboxId[] = [];
  readonly #killed = new Set<SandboxId>();
  readonly #snapshots: Snapshot[] = [];
  answered = 0;

  constructor(bench: Bench, seed: number) {
    this.#bench = bench;
    this.#random = seeded(seed);
    bench.pace = () => this.#turns(8);
  }

  async run(): Promise<void> {
    for (let at = 0; at < 2; at += 1) this.#known.push((await this.#bench.create()).id);
    const clients = await Promise.allSettled(Array.from({ length: CLIENTS }, () => this.#client()));
    for (const client of clients) if (client.status === "rejected") throw client.reason;
  }

  /** Ends and deletes all there is. */
  async clear(): Promise<void> {
    const { orchestrator } = this.#bench;
    for (const { id, state } of orchestrator.list()) {
      assert.ok(state === "running" || state === "paused", `${id} is stuck: ${state}`);
      await orchestrator.kill(id);
    }
    for (const { id } of this.#snapshots) await orchestrator.deleteSnapshot(id);
  }

  async #client(): Promise<void> {
    for (let at = 0; at < REQUESTS_EACH; at += 1) {
      await this.#turns(6);
      this.#breakSomething();
      if (this.#bench.orchestrator.list().length < 2 || this.#random() < 0.05) await refusalOf(this.#create());
      else await this.#ask(this.#pick(this.#known));
      this.answered += 1;
    }
  }

  async #ask(id: SandboxId): Promise<void> {
    const wasKilled = this.#killed.has(id);
    const refusal = await refusalOf(this.#request(id));
    if (wasKilled) assert.equal(refusal, "not-found", `${id} had been killed`);
  }

  async #request(id: SandboxId): Promise<void> {
    const { orchestrator } = this.#bench;
    const dice = this.#random();
    if (dice < 0.08) await this.#kill(id);
    else if (dice < 0.3) await orchestrator.pause(id);
    else if (dice < 0.45) await orchestrator.connect(id, 60_000);
    else if (dice < 0.55) await orchestrator.resume(id);
    else if (dice < 0.65) await orchestrator.setTimeout(id, 60_000);
    else if (dice < 0.78) await this.#fork(id);
    else this.#snapshots.push(await orchestrator.snapshot(id, {}));
  }

  /** Now and then the next capture or launch fails, and takes its machine along or not. */
  #breakSomething(): void {
    const { host, script } = this.#bench;
    if (this.#random() < 0.05) host.failNext("checkpoint", new CheckpointError("no space", this.#random() < 0.7));
    if (this.#random() < 0.05) script.fail(this.#pick(["sync", "restore", "mount", "slot"]));
  }

  async #kill(id: SandboxId): Promise<void> {
    await this.#bench.orchestrator.kill(id);
    this.#killed.add(id);
    assert.equal(this.#bench.orchestrator.get(id), undefined);
  }

  async #fork(id: SandboxId): Promise<void> {
    for (const result of await this.#bench.orchestrator.fork(id, 2)) {
      if ("sandbox" in result) this.#known.push(result.sandbox.id);
      else assert.ok(REFUSALS.has(errorKind(result.error)), String(result.error));
    }
  }

  async #create(): Promise<void> {
    const { spec } = this.#bench.orchestrator.list()[0] ?? (await this.#bench.create());
    const { id } = await this.#bench.orchestrator.create(spec, this.#pick([SNAPSHOT, ...this.#snapshots]));
    this.#known.push(id);
  }

  async #turns(max: number): Promise<void> {
    for (let left = Math.floor(this.#random() * max); left > 0; left -= 1) await turn();
  }

  #pick<T>(from: readonly [T, ...T[]] | readonly T[]): T {
    return from[Math.floor(this.#random() * from.length)] as T;
  }
}

/** What a request was refused for; undefined: it was carried out. Throws what no request may end with. */
async function refusalOf(request: Promise<void>): Promise<ErrorKind | undefined> {
  try {
    await request;
    return undefined;
  } catch (error) {
    if (!(error instanceof AenvError) || !REFUSALS.has(error.kind)) throw error;
    return error.kind;
  }
}

describe("many clients, everything in any order", { timeout: 120_000 }, () => {
  for (let seed = 1; seed <= SEEDS; seed += 1) {
    test(`every request is answered, a kill wins, and nothing is stuck or left (seed ${seed})`, async () => {
      await using bench = await Bench.open({ readyTimeoutMs: 10_000 });
      const crowd = new Crowd(bench, seed);
      await crowd.run();
      assert.equal(crowd.answered, CLIENTS * REQUESTS_EACH);
      await crowd.clear();
      assert.deepEqual(bench.overlaps, []);
      assert.deepEqual(await bench.held(), {});
    });
  }
});
