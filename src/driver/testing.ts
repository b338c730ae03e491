import assert from "node:assert/strict";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { GIB, MIB, type Resources } from "#domain";
import { CheckpointError, type Driver, type Machine, type MachineId, type MachineSpec } from "./driver.ts";
import { eventually, TestAgent } from "./testing/agent.ts";
import { LiveState } from "./testing/live-state.ts";

/** What a driver under test stands on. One for the whole suite. */
export interface DriverHarness extends AsyncDisposable {
  /** A driver object on the same host and state: the first, or that of a restarted server. */
  open(): Promise<Driver>;
  /** A specification with an id and a network of its own. */
  spec(resources: Resources): Promise<MachineSpec>;
  /** `host:port` of the machine's agent; undefined where the driver's machines have none. */
  agentAddress(spec: MachineSpec): string | undefined;
}

/** What a driver does not do, each with the reason shown for the skipped tests. */
export interface DriverLimitations {
  /** Programs do not survive a checkpoint. */
  readonly state?: string;
  /** Resources are not limited. */
  readonly limits?: string;
}

const SMALL: Resources = { vcpus: 1, memoryBytes: 512 * MIB, diskBytes: 1 * GIB, pidsMax: 2048 };
/** Allocates until something stops it. */
const MEMORY_BOMB = `exec python3 -c "
kept = []
while True: kept.append(bytearray(8 << 20))"`;
const FORK_BOMB = "while :; do sleep 600 & done";

/** The tests every driver passes. */
export function driverSuite(
  name: string,
  makeHarness: () => Promise<DriverHarness>,
  lacks: DriverLimitations = {},
): void {
  describe(`driver ${name}`, { timeout: 300_000 }, () => {
    let bench: Bench;
    before(async () => {
      bench = await Bench.open(await makeHarness());
    });
    after(() => bench[Symbol.asyncDispose]());

    lifecycleTests(() => bench);
    checkpointTests(() => bench, lacks);
    limitTests(() => bench, lacks);
  });
}

function lifecycleTests(bench: () => Bench): void {
  test("a booted machine's agent answers; stopping leaves nothing", async () => {
    const { machine, agent } = await bench().boot();
    assert.ok(machine.pid > 1);
    assert.deepEqual(await bench().driver.leftovers(), [machine.id]);
    if (agent !== undefined) assert.equal((await agent.run("echo hello")).stdout, "hello");
    await machine.stop();
    await machine.stop();
    assert.equal((await machine.exited).reason, "stopped");
    assert.deepEqual(await bench().driver.leftovers(), []);
  });

  test("an id is not used twice, and the refusal leaves its machine alone", async () => {
    const { machine, spec, agent } = await bench().boot();
    await assert.rejects(bench().driver.boot(spec));
    await agent?.ready();
    assert.deepEqual(await bench().driver.leftovers(), [spec.id]);
    await machine.stop();
  });

  test("a machine that cannot start leaves nothing", async () => {
    const spec = await bench().harness.spec(SMALL);
    await assert.rejects(bench().driver.restore(spec, join(bench().dir, "no-such-checkpoint")));
    assert.deepEqual(await bench().driver.leftovers(), []);
  });

  test("paused it is silent, resumed it answers, and both may be said again", async () => {
    const { machine, agent } = await bench().boot();
    await machine.pause();
    await machine.pause();
    assert.equal(await agent?.answers(300), agent && false);
    await machine.resume();
    await machine.resume();
    await agent?.ready();
    await machine.pause();
    await machine.stop();
    assert.deepEqual(await bench().driver.leftovers(), []);
  });

  test("a driver opened anew adopts what runs, paused or not, and learns of its end", async () => {
    const running = await bench().boot();
    const paused = await bench().boot();
    await paused.machine.pause();
    await bench().reopen();
    assert.deepEqual(new Set(await bench().driver.leftovers()), new Set([running.spec.id, paused.spec.id]));
    const again = await bench().adopt(running.spec);
    await running.agent?.ready();
    const pausedAgain = await bench().adopt(paused.spec);
    assert.equal(await paused.agent?.answers(300), paused.agent && false);
    await pausedAgain.resume();
    await paused.agent?.ready();
    await again.stop();
    assert.equal((await again.exited).reason, "stopped");
    await bench().driver.destroy(paused.spec.id);
    assert.equal(await bench().driver.adopt(paused.spec), undefined);
    assert.deepEqual(await bench().driver.leftovers(), []);
  });

  test("destroying is repeatable, also of what never was", async () => {
    const { machine } = await bench().boot();
    await bench().driver.destroy(machine.id);
    await machine.exited;
    await bench().driver.destroy(machine.id);
    await bench().driver.destroy((await bench().harness.spec(SMALL)).id);
    assert.deepEqual(await bench().driver.leftovers(), []);
  });
}

function checkpointTests(bench: () => Bench, lacks: DriverLimitations): void {
  test("one checkpoint of a running machine starts two, while it goes on", { skip: lacks.state }, async () => {
    const source = await bench().boot();
    const live = await LiveState.start(source.agentOrFail());
    const dir = bench().checkpointDir();
    await source.machine.checkpoint(dir, { keepRunning: true });
    await live.assertGoesOn();
    const [first, second] = await Promise.all([bench().restore(dir), bench().restore(dir)]);
    // What a restore needs it has read.
    await rm(dir, { recursive: true });
    await Promise.all([
      live.in(first.agentOrFail()).assertGoesOn(),
      live.in(second.agentOrFail()).assertGoesOn(),
      live.assertGoesOn(),
    ]);
    await Promise.all([source, first, second].map(({ machine }) => machine.stop()));
  });

  test("a checkpoint that ends its machine is restored", async () => {
    const source = await bench().boot();
    const live = lacks.state === undefined ? await LiveState.start(source.agentOrFail()) : undefined;
    const dir = bench().checkpointDir();
    await source.machine.checkpoint(dir, { keepRunning: false });
    assert.equal((await source.machine.exited).reason, "stopped");
    assert.deepEqual(await bench().driver.leftovers(), []);
    const restored = await bench().restore(dir);
    if (restored.agent !== undefined) await live?.in(restored.agent).assertGoesOn();
    await restored.machine.stop();
  });

  test("a paused machine's checkpoint is restored running, and it stays paused itself", async () => {
    const source = await bench().boot();
    await source.machine.pause();
    const dir = bench().checkpointDir();
    await source.machine.checkpoint(dir, { keepRunning: true });
    assert.equal(await source.agent?.answers(300), source.agent && false);
    const restored = await bench().restore(dir);
    await source.machine.resume();
    await source.agent?.ready();
    await Promise.all([source, restored].map(({ machine }) => machine.stop()));
  });

  test("a checkpoint that cannot be written leaves the machine running and says so", async () => {
    const { machine, agent } = await bench().boot();
    const dir = bench().checkpointDir();
    await machine.checkpoint(dir, { keepRunning: true });
    for (const keepRunning of [true, false]) {
      await assert.rejects(machine.checkpoint(dir, { keepRunning }), (error) => {
        assert.ok(error instanceof CheckpointError, String(error));
        return error.machineRuns;
      });
      await agent?.ready();
    }
    assert.ok((await readdir(dir)).length > 0, "the checkpoint that was there is gone");
    await machine.stop();
  });
}

function limitTests(bench: () => Bench, lacks: DriverLimitations): void {
  test("running out of memory ends the command, not the machine", { skip: lacks.limits }, async () => {
    for (const how of ["booted", "restored"] as const) {
      const { machine, agentOrFail } = await bench().start(how, { ...SMALL, memoryBytes: 256 * MIB });
      const bomb = await agentOrFail().run(MEMORY_BOMB);
      assert.equal(bomb.status, "signal: killed", `${how}: ${JSON.stringify(bomb)}`);
      assert.ok((await machine.stats()).oomKills > 0);
      assert.equal((await agentOrFail().run("echo hello")).stdout, "hello");
      await machine.stop();
    }
  });

  test("a fork bomb ends at its limit, and root can go on", { skip: lacks.limits }, async () => {
    const { machine, agentOrFail } = await bench().boot(SMALL);
    await agentOrFail().spawn(FORK_BOMB, { user: "nobody" });
    const count = await eventually(60_000, async () => {
      const { stdout } = await agentOrFail().run("ls /proc | grep -c '^[0-9]'");
      const later = await agentOrFail().run("ls /proc | grep -c '^[0-9]'");
      assert.ok(Number(stdout) > 100 && stdout === later.stdout, `${stdout} processes, then ${later.stdout}`);
      return Number(stdout);
    });
    assert.ok((await machine.stats()).pids <= SMALL.pidsMax);
    await eventually(60_000, async () => {
      const { stdout } = await agentOrFail().run("pkill -KILL -u nobody; ls /proc | grep -c '^[0-9]'");
      assert.ok(Number(stdout) < count / 4, `${stdout} of ${count} processes are still there`);
    });
    await machine.stop();
  });
}

interface Started {
  readonly machine: Machine;
  readonly spec: MachineSpec;
  readonly agent: TestAgent | undefined;
  agentOrFail(): TestAgent;
}

/** A driver and the machines a test has started with it. */
class Bench implements AsyncDisposable {
  readonly harness: DriverHarness;
  readonly dir: string;
  #driver: Driver;
  #checkpoints = 0;
  readonly #agents: TestAgent[] = [];

  private constructor(harness: DriverHarness, driver: Driver, dir: string) {
    this.harness = harness;
    this.#driver = driver;
    this.dir = dir;
  }

  static async open(harness: DriverHarness): Promise<Bench> {
    return new Bench(harness, await harness.open(), await mkdtemp(join(tmpdir(), "aenv-driver-")));
  }

  get driver(): Driver {
    return this.#driver;
  }

  async reopen(): Promise<void> {
    await this.#driver.close();
    this.#driver = await this.harness.open();
  }

  checkpointDir(): string {
    this.#checkpoints += 1;
    return join(this.dir, `checkpoint-${this.#checkpoints}`);
  }

  async boot(resources: Resources = SMALL): Promise<Started> {
    const spec = await this.harness.spec(resources);
    return this.#started(spec, await this.#driver.boot(spec));
  }

  async restore(dir: string, resources: Resources = SMALL): Promise<Started> {
    const spec = await this.harness.spec(resources);
    return this.#started(spec, await this.#driver.restore(spec, dir));
  }

  async start(how: "booted" | "restored", resources: Resources): Promise<Started> {
    const booted = await this.boot(resources);
    if (how === "booted") return booted;
    const dir = this.checkpointDir();
    await booted.machine.checkpoint(dir, { keepRunning: false });
    return this.restore(dir, resources);
  }

  async adopt(spec: MachineSpec): Promise<Machine> {
    const machine = await this.#driver.adopt(spec);
    assert.ok(machine !== undefined, `machine ${spec.id} was not found again`);
    assert.equal(machine.id, spec.id);
    return machine;
  }

  async #started(spec: MachineSpec, machine: Machine): Promise<Started> {
    const address = this.harness.agentAddress(spec);
    const agent = address === undefined ? undefined : new TestAgent(address);
    if (agent !== undefined) this.#agents.push(agent);
    await agent?.ready();
    const agentOrFail = (): TestAgent => {
      assert.ok(agent !== undefined, "this driver's machines have no agent: the test has to be skipped for it");
      return agent;
    };
    return { machine, spec, agent, agentOrFail };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const agent of this.#agents) agent.close();
    for (const id of await this.#driver.leftovers()) await this.#driver.destroy(id);
    await this.#driver.close();
    await rm(this.dir, { recursive: true, force: true });
    await this.harness[Symbol.asyncDispose]();
  }
}

let serial = 0;

/** An id of the form machines have: a sandbox's and a generation. */
export function testMachineId(): MachineId {
  serial += 1;
  const random = Math.random().toString(36).slice(2, 10).padEnd(8, "0");
  return `i${`${random}${serial}`.padEnd(19, "x")}-0001`;
}
