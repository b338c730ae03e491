import assert from "node:assert/strict";
import { readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { MIB } from "#domain";
import { CheckpointError } from "./driver.ts";
import { eventually, patience } from "./testing/agent.ts";
import { Bench, type DriverHarness, SMALL, type Started } from "./testing/bench.ts";
import { LiveState } from "./testing/live-state.ts";

export { type DriverHarness, testMachineId, testNetwork } from "./testing/bench.ts";

/** What a driver does not do, each with the reason shown for the skipped tests. */
export interface DriverLimitations {
  /** Programs do not survive a checkpoint. */
  readonly state?: string;
  /** Resources are not limited. */
  readonly limits?: string;
}

/** Allocates until something stops it. */
const MEMORY_BOMB = `exec python3 -IS -c "
kept = []
while True: kept.append(bytearray(8 << 20))"`;
/** Processes that wait, and that no program has to be loaded for. */
const FORK_BOMB = "mkfifo /tmp/never; exec 9<>/tmp/never; while :; do (read line <&9) & done";

/** The tests every driver passes. */
export function driverSuite(
  name: string,
  makeHarness: () => Promise<DriverHarness>,
  lacks: DriverLimitations = {},
): void {
  describe(`driver ${name}`, { timeout: patience(300_000) }, () => {
    let bench: Bench;
    before(async () => {
      bench = await Bench.open(await makeHarness());
    });
    after(() => bench[Symbol.asyncDispose]());

    lifecycleTests(() => bench);
    checkpointTests(() => bench, lacks);
    limitTests(() => bench, lacks);
    if (lacks.state === undefined) stateTests(() => bench);
  });
}

function lifecycleTests(bench: () => Bench): void {
  test("a booted machine's agent answers; stopping leaves nothing", async () => {
    const { machine, agent } = await bench().boot();
    assert.ok(machine.pid > 1);
    assert.deepEqual(await bench().driver.leftovers(), [machine.id]);
    if (agent !== undefined) assert.equal((await agent.run("echo hello")).stdout, "hello");
    await bench().useAsTemplate(machine);
    await machine.stop();
    await machine.stop();
    assert.equal((await machine.exited).reason, "stopped");
    assert.deepEqual(await bench().driver.leftovers(), []);
  });

  test("an id is not used twice, and the refusal leaves its machine alone", async () => {
    const { machine, spec, agent } = await bench().start();
    await assert.rejects(bench().driver.boot(spec));
    await assert.rejects(bench().driver.restore(spec, await bench().template()));
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
    const { machine, agent } = await bench().start();
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
    const running = await bench().start();
    const paused = await bench().start();
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
    const { machine } = await bench().start();
    await bench().driver.destroy(machine.id);
    await machine.exited;
    await bench().driver.destroy(machine.id);
    await bench().driver.destroy((await bench().harness.spec(SMALL)).id);
    assert.deepEqual(await bench().driver.leftovers(), []);
  });
}

function checkpointTests(bench: () => Bench, lacks: DriverLimitations): void {
  test("one checkpoint of a running machine starts two, while it goes on", { skip: lacks.state }, async () => {
    const source = await bench().start();
    const live = await LiveState.start(source.agentOrFail());
    const connection = await source.agentOrFail().connect();
    await connection.ask();
    const dir = bench().checkpointDir();
    await source.machine.checkpoint(dir, { keepRunning: true });
    await connection.ask();
    connection.close();
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
    const source = await bench().start();
    const pid = lacks.state === undefined ? await source.agentOrFail().spawn("exec sleep 86400") : 0;
    const dir = bench().checkpointDir();
    await source.machine.checkpoint(dir, { keepRunning: false });
    assert.equal((await source.machine.exited).reason, "stopped");
    assert.deepEqual(await bench().driver.leftovers(), []);
    const { machine, agentOrFail } = await bench().restore(dir);
    if (pid !== 0) assert.equal((await agentOrFail().run(`cat /proc/${pid}/comm`)).stdout, "sleep");
    await machine.stop();
  });

  test("a paused machine's checkpoint is restored running, and it stays paused itself", async () => {
    const source = await bench().start();
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
    const { machine, agent } = await bench().start();
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
    const started = [await bench().start()];
    // The host takes a restored machine's processes for others; a guest's own kernel is the same one.
    if (bench().driver.capabilities.limitsKeptBy === "host") started.push(await bench().boot());
    for (const { machine, agentOrFail } of started) {
      const bomb = await agentOrFail().run(MEMORY_BOMB);
      assert.equal(bomb.status, "signal: killed", JSON.stringify(bomb));
      if (bench().driver.capabilities.limitsKeptBy === "host") assert.ok((await machine.stats()).oomKills > 0);
      assert.equal((await agentOrFail().run("echo hello")).stdout, "hello");
      await machine.stop();
    }
  });

  test("a fork bomb ends at its limit, and root can go on", { skip: lacks.limits }, async () => {
    const { machine, agentOrFail } = await bench().start();
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

/** What is in a checkpoint, and what is given to a machine that was restored from one. */
function stateTests(bench: () => Bench): void {
  test("each checkpoint of a chain is restored as it was taken, whatever became of the others", async () => {
    const source = await bench().start();
    const dirs: string[] = [];
    // Longer than any chain a driver keeps.
    for (let at = 1; at <= 7; at += 1) {
      await source.agentOrFail().run(`echo ${at} | tee /dev/shm/at > /tmp/at`);
      const dir = bench().checkpointDir();
      await source.machine.checkpoint(dir, { keepRunning: true });
      dirs.push(dir);
    }
    await source.machine.stop();
    const restored: Started[] = [];
    for (const at of [1, 7]) {
      restored.push(await bench().restore(dirs[at - 1] ?? ""));
      // It needs neither those before it nor itself.
      for (const dir of dirs.slice(0, at)) await rm(dir, { recursive: true, force: true });
    }
    const again = bench().checkpointDir();
    await restored.at(-1)?.machine.checkpoint(again, { keepRunning: false });
    restored.push(await bench().restore(again));
    for (const [index, at] of [1, undefined, 7].entries()) {
      if (at === undefined) continue;
      const said = await restored[index]?.agentOrFail().run("cat /dev/shm/at /tmp/at");
      assert.equal(said?.stdout, `${at}\n${at}`);
      await restored[index]?.machine.stop();
    }
  });

  test("a checkpoint says which memory has changed, where the driver knows", async () => {
    const { machine, agentOrFail } = await bench().start();
    await machine.checkpoint(bench().checkpointDir(), { keepRunning: true });
    await agentOrFail().run("head -c 8M /dev/urandom > /dev/shm/dirty");
    const { dirtyMemory } = await machine.checkpoint(bench().checkpointDir(), { keepRunning: true });
    await machine.stop();
    if (!bench().driver.capabilities.incrementalMemory) return assert.equal(dirtyMemory, undefined);
    const dirtyBytes = (dirtyMemory ?? []).reduce((sum, { length }) => sum + length, 0);
    assert.ok(dirtyBytes >= 8 * MIB && dirtyBytes < 128 * MIB, `${dirtyBytes} bytes`);
  });

  test("clones differ in identity, clock and entropy once they are told who they are", async () => {
    const source = await bench().start();
    await source.agentOrFail().spawn(`exec python3 -IS -c '${WITNESS}'`);
    const startedAt = performance.now();
    await eventually(15_000, async () =>
      assert.equal((await source.agentOrFail().run("cat /tmp/ready")).stdout, "ready"),
    );
    const readyAt = performance.now();
    const dir = bench().checkpointDir();
    await source.machine.checkpoint(dir, { keepRunning: false });
    const stoppedAt = performance.now();
    await sleep(GAP_MS);
    const restoringAt = performance.now();
    const clones = [await bench().restore(dir), await bench().restore(dir)];
    const said = [];
    for (const [number, { agentOrFail }] of clones.entries()) {
      const toldAtMs = Date.now();
      await agentOrFail().init({ hostname: `clone-${number}` });
      const askedAt = performance.now();
      const { stdout } = await agentOrFail().run(
        "touch /tmp/go; while ! [ -s /tmp/said ]; do sleep 0.05; done; cat /tmp/said; hostname; date +%s%3N; head -c 16 /dev/urandom | base64",
      );
      const [user = "", elapsed = "", hostname, date, random] = stdout.split("\n");
      said.push({ user, hostname, random });
      assert.ok(
        Number(date) > toldAtMs - 100 && Number(date) < Date.now() + 100,
        `it is ${date} there, told ${toldAtMs}`,
      );
      const elapsedMs = Number(elapsed) * 1000;
      const withoutGapMs = performance.now() - startedAt - (restoringAt - stoppedAt);
      if (bench().driver.capabilities.monotonicJumps) assert.ok(elapsedMs > askedAt - readyAt - 500, `${elapsedMs} ms`);
      else assert.ok(elapsedMs < withoutGapMs + 500, `${elapsedMs} ms of ${withoutGapMs}`);
    }
    assert.deepEqual(
      said.map(({ hostname }) => hostname),
      ["clone-0", "clone-1"],
    );
    assert.notEqual(said[0]?.random, said[1]?.random, "the kernel's random numbers repeat");
    assert.equal(bench().driver.capabilities.clonesShareUserRandomness, said[0]?.user === said[1]?.user);
    await Promise.all(clones.map(({ machine }) => machine.stop()));
  });
}

/** How long a checkpoint lies before it is restored, to tell clocks apart. */
const GAP_MS = 3_000;
/** A living process with a random generator and a clock of its own: once asked it says a number of the one, and how much of
 *  the other has passed. */
const WITNESS = `
import os, time
from _random import Random
random = Random()
start = time.monotonic()
open("/tmp/ready", "w").write("ready")
while not os.path.exists("/tmp/go"): time.sleep(0.05)
open("/tmp/said.new", "w").write("%d\\n%f\\n" % (random.getrandbits(64), time.monotonic() - start))
os.rename("/tmp/said.new", "/tmp/said")
`;
