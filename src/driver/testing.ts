import assert from "node:assert/strict";
import { readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { after, afterEach, before, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { MIB } from "#domain";
import { CheckpointError, type CheckpointReport, type DriverCapabilities } from "./driver.ts";
import { eventually, IS_EMULATED, patience } from "./testing/agent.ts";
import { Bench, type DriverHarness, SMALL, type Started } from "./testing/bench.ts";
import { diskTests } from "./testing/disk.ts";
import { whileGuarded } from "./testing/guard.ts";
import { LiveState } from "./testing/live-state.ts";

export { type DriverHarness, testMachineId, testNetwork } from "./testing/bench.ts";

/** What a driver does not do, each with the reason shown for the skipped tests. */
export interface DriverLimitations {
  /** Programs do not survive a checkpoint. */
  readonly state?: string;
  /** Resources are not limited. */
  readonly limits?: string;
  /** There are no checkpoints of the disk alone. */
  readonly disk?: string;
}

/** A command's, long enough for the calls around a pause; the pause is as long. */
const DEADLINE_MS = Math.min(patience(2_500), 8_000);
/** Allocates until something stops it. */
export const MEMORY_BOMB = `exec python3 -IS -c "
kept = []
while True: kept.append(bytearray(8 << 20))"`;
/** How many processes there are, told by the shell itself. */
const COUNT = "set -- /proc/[0-9]*; echo $#";
/** The same, when it has not changed for a while: one program looks, for to start one costs a machine that is full of them much. */
const SETTLED_COUNT = `exec bash -c '
[ -p /tmp/still ] || mkfifo /tmp/still; exec 9<>/tmp/still
until set -- /proc/[0-9]*; [ $# = "$count" ]; do count=$#; read -t ${patience(250) / 1000} -u 9; done
echo $count'`;
/** How many processes a fork bomb comes to at least: on an emulated processor a host's limit is low. */
const leastBomb = ({ limitsKeptBy }: DriverCapabilities): number => (IS_EMULATED && limitsKeptBy === "host" ? 30 : 90);
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
    // One that fails leaves machines, which are no fault of those after it.
    afterEach(async () => {
      for (const id of await bench.driver.leftovers()) await bench.driver.destroy(id);
    });
    after(() => bench[Symbol.asyncDispose]());

    lifecycleTests(() => bench);
    checkpointTests(() => bench, lacks);
    diskTests(() => bench, lacks);
    limitTests(() => bench, lacks);
    if (lacks.state === undefined) stateTests(() => bench);
  });
}

function lifecycleTests(bench: () => Bench): void {
  test("a booted machine's agent answers, and not once it is told to stop; stopping leaves nothing", async () => {
    const { machine, agent } = await bench().boot();
    assert.ok(machine.pid > 1);
    assert.deepEqual(await bench().driver.leftovers(), [machine.id]);
    if (agent !== undefined) assert.equal((await agent.run("echo hello")).stdout, "hello");
    await bench().useAsTemplate(machine);
    const stopped = machine.stop();
    assert.equal(await agent?.answers(150), agent && false);
    await stopped;
    await machine.stop();
    assert.equal((await machine.exited).reason, "stopped");
    assert.deepEqual(await bench().driver.leftovers(), []);
  });

  test("an id is not used twice, and the refusal leaves its machine alone; destroying is repeatable", async () => {
    const { machine, spec, agent } = await bench().start();
    await assert.rejects(bench().driver.boot(spec));
    await assert.rejects(bench().driver.restore(spec, await bench().template()));
    await agent?.ready();
    assert.deepEqual(await bench().driver.leftovers(), [spec.id]);
    await bench().driver.destroy(spec.id);
    await machine.exited;
    await bench().driver.destroy(spec.id);
    // Also of what never was.
    await bench().driver.destroy((await bench().harness.spec(SMALL)).id);
    assert.deepEqual(await bench().driver.leftovers(), []);
  });

  test("a machine that cannot start leaves nothing", async () => {
    const spec = await bench().harness.spec(SMALL);
    await assert.rejects(bench().driver.restore(spec, join(bench().dir, "no-such-checkpoint")));
    assert.deepEqual(await bench().driver.leftovers(), []);
  });

  test("paused it is silent and no command's time runs, whatever comes back to its runtime, resumed it answers, and all may be said again", async () => {
    const { machine, agent } = await bench().start();
    const aheadMs = await agent?.clockAheadMs();
    const pid = await agent?.spawn("exec sleep 86400", { deadlineMs: DEADLINE_MS });
    await machine.pause();
    await machine.pause();
    await machine.bringBackRuntime();
    assert.equal(await agent?.answers(150), agent && false);
    if (agent !== undefined) await sleep(DEADLINE_MS);
    await Promise.all([machine.bringBackRuntime(), machine.resume()]);
    await machine.resume();
    // SNAP-16, SNAP-02: nobody has told the agent that the machine stood still.
    if (pid !== undefined) assert.equal(await agent?.runs(pid), true, "the pause was taken from the command's time");
    if (agent !== undefined && aheadMs !== undefined) {
      const driftMs = (await agent.clockAheadMs()) - aheadMs;
      assert.ok(Math.abs(driftMs) < DEADLINE_MS / 2, `over the pause its clock went ${driftMs} ms wrong`);
    }
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
    assert.equal(await paused.agent?.answers(150), paused.agent && false);
    await pausedAgain.resume();
    await paused.agent?.ready();
    await again.stop();
    assert.equal((await again.exited).reason, "stopped");
    await bench().driver.destroy(paused.spec.id);
    assert.equal(await bench().driver.adopt(paused.spec), undefined);
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

  test("a paused machine's checkpoint is restored running, and it stays paused itself; one that cannot be written says so", async () => {
    const { machine, agent } = await bench().start();
    await machine.pause();
    const dir = bench().checkpointDir();
    await machine.checkpoint(dir, { keepRunning: true });
    assert.equal(await agent?.answers(150), agent && false);
    const restored = await bench().restore(dir);
    await restored.machine.stop();
    await machine.resume();
    await agent?.ready();
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
    // A guest's own kernel is the same one in both.
    if (bench().driver.capabilities.limitsKeptBy === "host") started.push(await bench().boot());
    for (const each of started) {
      const { machine, agentOrFail } = each;
      const bomb = await whileGuarded(each, agentOrFail().run(MEMORY_BOMB));
      assert.equal(bomb.status, "signal: killed", JSON.stringify(bomb));
      // What was killed gives its memory back a little after its end.
      await eventually(10_000, async () => assert.equal((await agentOrFail().run("echo hello")).stdout, "hello"));
      await machine.stop();
    }
  });

  test("a fork bomb ends at its limit, and root can go on", { skip: lacks.limits }, async () => {
    const { machine, agentOrFail } = await bench().start();
    // A guest's own kernel has some, too.
    const before = Number((await agentOrFail().run(COUNT)).stdout);
    await agentOrFail().spawn(FORK_BOMB, { user: "nobody" });
    const count = await eventually(60_000, async () => {
      const { stdout } = await agentOrFail().run(SETTLED_COUNT);
      const more = Number(stdout) - before;
      assert.ok(more > leastBomb(bench().driver.capabilities), `${before} processes, then ${stdout}`);
      return more;
    });
    assert.ok((await machine.stats()).pids <= SMALL.pidsMax);
    await eventually(60_000, async () => {
      const { stdout } = await agentOrFail().run(`pkill -KILL -u nobody; ${COUNT}`);
      const left = Number(stdout) - before;
      assert.ok(left < count / 4, `${left} of ${count} processes are still there`);
    });
    await machine.stop();
  });
}

/** What is in a checkpoint, and what is given to a machine that was restored from one. */
function stateTests(bench: () => Bench): void {
  test("each checkpoint of a chain is restored as it was taken, whatever became of the others, and says which memory has changed", async () => {
    const source = await bench().start();
    const last = chainOf(bench().driver.capabilities);
    const dirs: string[] = [];
    for (let at = 1; at <= last; at += 1) {
      await source.agentOrFail().run(`echo ${at} > /dev/shm/at; echo ${at} > /tmp/at; ${at === 2 ? WRITE_8M : ""}`);
      const dir = bench().checkpointDir();
      const { dirtyMemory } = await source.machine.checkpoint(dir, { keepRunning: true });
      dirs.push(dir);
      if (at === 2) assertChanged(bench().driver.capabilities, dirtyMemory);
    }
    await source.machine.stop();
    const restored: Started[] = [];
    for (const at of [1, last]) {
      restored.push(await bench().restore(dirs[at - 1] ?? ""));
      // It needs neither those before it nor itself.
      for (const dir of dirs.slice(0, at)) await rm(dir, { recursive: true, force: true });
    }
    const again = bench().checkpointDir();
    await restored.at(-1)?.machine.checkpoint(again, { keepRunning: false });
    restored.push(await bench().restore(again));
    for (const [index, at] of [1, undefined, last].entries()) {
      if (at === undefined) continue;
      const said = await restored[index]?.agentOrFail().run("cat /dev/shm/at /tmp/at");
      assert.equal(said?.stdout, `${at}\n${at}`);
      await restored[index]?.machine.stop();
    }
  });

  test("clones differ in identity, clock and entropy once they are told who they are", async () => {
    const source = await bench().start();
    await source.agentOrFail().run("mkfifo /tmp/ready /tmp/go /tmp/said");
    const startedAt = performance.now();
    await source.agentOrFail().spawn(`exec python3 -IS -c '${WITNESS}'`);
    assert.equal((await source.agentOrFail().run("read -r word </tmp/ready; echo $word")).stdout, "ready");
    const readyAt = performance.now();
    const dir = bench().checkpointDir();
    await source.machine.checkpoint(dir, { keepRunning: false });
    const stoppedAt = performance.now();
    // Longer than what is not known to within, where asking takes long.
    await sleep(GAP_MS + 2 * (readyAt - startedAt));
    const restoringAt = performance.now();
    const clones = [await bench().restore(dir), await bench().restore(dir)];
    const said = [];
    for (const [number, { agentOrFail }] of clones.entries()) {
      const toldAtMs = Date.now();
      await agentOrFail().init({ hostname: `clone-${number}`, generationId: `c${number}` });
      const askedAt = performance.now();
      const { stdout } = await agentOrFail().run(ASK_WITNESS);
      const [user = "", elapsed = "", hostname, generation, date, random] = stdout.split("\n");
      said.push({ user, names: [hostname, generation], random });
      assert.ok(
        Number(date) > toldAtMs - 100 && Number(date) < Date.now() + 100,
        `it is ${date} there, told ${toldAtMs}`,
      );
      const elapsedMs = Number(elapsed) * 1000;
      const withoutGapMs = performance.now() - startedAt - (restoringAt - stoppedAt);
      const withGapMs = askedAt - readyAt;
      const found = `${elapsedMs} ms; with the gap at least ${withGapMs}, without it at most ${withoutGapMs}`;
      const is = { jumped: elapsedMs > withGapMs - 500, stood: elapsedMs < withoutGapMs + 500 };
      const { monotonicJumps } = bench().driver.capabilities;
      if (monotonicJumps === undefined) assert.ok(is.jumped || is.stood, found);
      else assert.ok(monotonicJumps ? is.jumped : is.stood, found);
    }
    assert.deepEqual(
      said.map(({ names }) => names),
      ["0", "1"].map((number) => [`clone-${number}`, `AENV_GENERATION_ID=c${number}`]),
    );
    assert.notEqual(said[0]?.random, said[1]?.random, "the kernel's random numbers repeat");
    assert.equal(bench().driver.capabilities.clonesShareUserRandomness, said[0]?.user === said[1]?.user);
    await Promise.all(clones.map(({ machine }) => machine.stop()));
  });
}

const WRITE_8M = "head -c 8M /dev/urandom > /dev/shm/dirty";

/** After `WRITE_8M`. */
function assertChanged(
  { incrementalMemory }: Pick<DriverCapabilities, "incrementalMemory">,
  dirtyMemory: CheckpointReport["dirtyMemory"],
): void {
  const dirtyBytes = dirtyMemory?.reduce((sum, { length }) => sum + length, 0);
  if (!incrementalMemory) assert.equal(dirtyBytes, undefined);
  else
    assert.ok(
      dirtyBytes !== undefined && dirtyBytes >= 8 * MIB && dirtyBytes < SMALL.memoryBytes / 2,
      `${dirtyBytes} bytes`,
    );
}

/** Checkpoints in a row: more than the longest chain a driver keeps has parts, and one that goes on from there. Where each is complete
 *  there is no chain. */
const chainOf = ({ incrementalMemory }: DriverCapabilities): number => (incrementalMemory ? 6 : 3);
/** How long a checkpoint lies at least before it is restored, to tell clocks apart. */
const GAP_MS = 3_000;
/** A living process with a random generator and a clock of its own: once asked it says a number of the one, and how much of
 *  the other has passed. It waits in a pipe, and is asked by as few programs as can be: both cost seconds under emulation. */
const WITNESS = `
import os, time
from _random import Random
random = Random()
start = time.monotonic()
go, said = os.open("/tmp/go", os.O_RDWR), os.open("/tmp/said", os.O_RDWR)
open("/tmp/ready", "w").write("ready\\n")
os.read(go, 1)
os.write(said, b"%d\\n%f\\n" % (random.getrandbits(64), time.monotonic() - start))
time.sleep(86400)
`;
/** What it says, then the machine's name, generation, time and random numbers, a line each. */
const ASK_WITNESS = `echo > /tmp/go; { read -r number; read -r elapsed; } < /tmp/said; echo $number; echo $elapsed
hostname; while read -r line; do last=$line; done < /run/aenv/generation; echo $last; date +%s%3N
od -An -N16 -tx1 /dev/urandom`;
