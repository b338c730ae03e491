import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync } from "node:fs";
import { after, before, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { GIB, MIB, type Resources } from "#domain";
import { CheckpointError, type Driver, type Machine, type MachineSpec } from "#driver";
import { commandLine, processIds } from "#lib/proc";
import { localRunner } from "#lib/spawn";
import { laterScore } from "../../src/driver/gvisor/oom.ts";
import { ROOM_BYTES } from "../../src/driver/memory-limit.ts";
import { eventually, IS_EMULATED, patience, TestAgent } from "../../src/driver/testing/agent.ts";
import { driverSuite, MEMORY_BOMB } from "../../src/driver/testing.ts";
import { GvisorBench } from "./gvisor/bench.ts";

const SMALL: Resources = {
  ...{ vcpus: 1, diskBytes: 1 * GIB, pidsMax: 1024 },
  memoryBytes: (IS_EMULATED ? 128 : 256) * MIB,
};
/** What the kernel adds to the badness of the sandbox and its agent, where it lets this process say so (CAP_SYS_RESOURCE). */
const MAY_PROTECT = spawnSync("sh", ["-c", "echo -500 >/proc/self/oom_score_adj"]).status === 0;
const LATER = MAY_PROTECT ? laterScore(SMALL.memoryBytes) : 0;
const NOT_PROTECTED = MAY_PROTECT
  ? false
  : "needs CAP_SYS_RESOURCE: tested in the emulated machine, by this file among its suites";
/** What it takes the sandbox fills, call by call: the program itself maps next to nothing of it. */
const READING_BOMB = `exec python3 -IS -c "
zeros, kept = open('/dev/zero', 'rb', 0), []
while True: kept.append(zeros.read(1 << 20))"`;
/** What a machine holds whose checkpoint takes a while; and of zeros as much again. */
const HELD_BYTES = 64 * MIB;
/** Where a `runsc` that makes a sandbox is killed, ms after its start: from before it has made anything to when it is done. */
const KILL_AFTER_MS = [5, 20, 35, 50, 65, 80, 100, 130, 170];

const skip = process.getuid?.() === 0 ? false : "needs root";

/** They take gVisor minutes on an emulated processor, and ask nothing of the host's kernel. */
const lacks = IS_EMULATED ? { disk: "tested on a real processor, by this file among the host's tests" } : {};
if (skip === false) driverSuite("gvisor", () => GvisorBench.open(), lacks);

describe("what the gVisor driver leaves on and takes from the host", { skip, timeout: patience(300_000) }, () => {
  let bench: GvisorBench;
  let driver: Driver;

  before(async () => {
    bench = await GvisorBench.open();
    driver = await bench.open();
  });
  after(async () => {
    for (const id of await driver.leftovers()) await driver.destroy(id);
    await driver.close();
    await bench[Symbol.asyncDispose]();
  });

  test("every process of a machine is inside its cgroup, with the limits asked for, whatever was left there", async () => {
    const spec = await bench.spec(SMALL);
    for (const dir of bench.cgroupDirs(spec.id)) mkdirSync(dir, { recursive: true });
    const machine = await driver.boot(spec);
    const limits = bench.readLimits(spec.id);
    assert.deepEqual(limits, { memoryBytes: SMALL.memoryBytes, cpuQuotaUsec: 100_000, pidsMax: SMALL.pidsMax });
    const path = `${bench.cgroupParent}/${spec.id}`;
    const joined = readFileSync(`/proc/${machine.pid}/cgroup`, "utf8").trim().split("\n");
    for (const controller of ["memory", "cpu", "pids"]) {
      const line = joined.find((text) => text.split(":")[1]?.split(",").includes(controller)) ?? joined.at(-1);
      assert.ok(line?.endsWith(`:${path}`), `the sandbox is not limited by ${controller}: ${joined}`);
    }
    await machine.stop();
    assert.deepEqual(bench.cgroupDirs(spec.id).filter(existsSync), []);
  });

  test("the writable layer, /tmp included, is on disk and has the size asked for", async () => {
    const disk = { ...SMALL, diskBytes: 400 * MIB };
    const spec = await bench.spec(disk);
    const machine = await driver.boot(spec);
    const agent = await ready(bench, spec);
    const { stdout } = await agent.run("df --output=size -B1 / /tmp | tail -n +2");
    assert.deepEqual(stdout.split("\n").map(Number), [disk.diskBytes, disk.diskBytes]);
    // More than the machine has memory.
    const written = await agent.run(
      "dd if=/dev/zero of=/tmp/big bs=10M count=35 status=none && wc -c < /tmp/big && rm /tmp/big",
    );
    assert.equal(written.stdout, String(350 * MIB), written.stderr);
    const full = await agent.run("dd if=/dev/zero of=/big bs=10M count=45 status=none; rm /big; echo still here");
    assert.match(full.stderr, /No space left/);
    assert.equal(full.stdout, "still here");
    assert.equal((await machine.stats()).oomKills, 0);
    await machine.stop();
    agent.close();
  });

  test("the guest may do what root may, and gain it", async () => {
    const spec = await bench.spec(SMALL);
    const machine = await driver.boot(spec);
    const agent = await ready(bench, spec);
    const mounted = await agent.run("mkdir /mnt/t && mount -t tmpfs none /mnt/t && echo ok; ulimit -n; hostname");
    assert.deepEqual(mounted.stdout.split("\n"), ["ok", "1048576", spec.hostname], mounted.stderr);
    const rises = await agent.run("cp /usr/bin/id /tmp/rootid && chmod 4755 /tmp/rootid && echo ok");
    assert.equal(rises.stdout, "ok", rises.stderr);
    assert.match((await agent.run("/tmp/rootid -u", { user: "nobody" })).stdout, /^0$/);
    assert.notEqual((await agent.run("touch /.aenv/x")).exitCode, 0, "the agent's folder is writable");
    await machine.stop();
    agent.close();
  });

  test("the guest holds no file of the host, booted or restored", async () => {
    const spec = await bench.spec(SMALL);
    const machine = await driver.boot(spec);
    const checkpoint = `${bench.dir}/no-files`;
    await machine.checkpoint(checkpoint, { keepRunning: true });
    const again = await bench.spec(SMALL);
    const restored = await driver.restore(again, checkpoint);
    for (const each of [spec, again]) {
      const agent = await ready(bench, each);
      const filled = await agent.run(
        "for fd in 1 2; do dd if=/dev/zero of=/proc/1/fd/$fd bs=8M count=8 status=none; done; echo done",
      );
      assert.equal(filled.stdout, "done", filled.stderr);
      agent.close();
    }
    for (const each of [spec, again]) assert.ok(bench.bytesOf(each.id) < 1 * MIB, `${bench.bytesOf(each.id)} bytes`);
    for (const each of [machine, restored]) await each.stop();
  });

  test("a checkpoint that is to be durable is written out while it grows, another is not; neither has pages of zeros", {
    skip: IS_EMULATED && lacks.disk,
  }, async (t) => {
    const spec = await bench.spec(SMALL);
    const machine = await driver.boot(spec);
    const agent = await ready(bench, spec);
    const capture = async (durable: boolean): Promise<number | undefined> => {
      const dir = `${bench.dir}/written-out`;
      await machine.checkpoint(dir, { keepRunning: true, durable });
      const pages = `${dir}/pages.img`;
      const [unwritten, { size }] = [await unwrittenBytes(pages), statSync(pages)];
      rmSync(dir, { recursive: true });
      assert.ok(size >= HELD_BYTES && size < 2 * HELD_BYTES, `${size} bytes of pages`);
      return unwritten;
    };
    try {
      const held = await agent.run(
        `head -c ${HELD_BYTES} /dev/urandom > /dev/shm/held && head -c ${HELD_BYTES} /dev/zero > /dev/shm/zeros`,
      );
      assert.equal(held.exitCode, 0, held.stderr);
      // Now and then the kernel writes all that there is.
      for (let round = 0; round < 5; round += 1) {
        if (((await capture(false)) ?? 0) < HELD_BYTES / 2) continue;
        assert.ok(((await capture(true)) ?? 0) < HELD_BYTES / 2);
        return;
      }
      t.skip("NOT TESTED: this file system does not tell what is written, or the kernel writes without a pause");
    } finally {
      await machine.stop();
      agent.close();
    }
  });

  test("whoever asks for a checkpoint is killed meanwhile: the machine goes on as it did, also with another driver", {
    skip: IS_EMULATED && lacks.disk,
  }, async () => {
    const spec = await bench.spec(SMALL);
    const machine = await driver.boot(spec);
    const agent = await ready(bench, spec);
    const held = await agent.run(`head -c ${HELD_BYTES} /dev/urandom > /dev/shm/held`);
    assert.equal(held.exitCode, 0, held.stderr);
    const dir = `${bench.dir}/killed`;
    const goesOn = async (one: Machine): Promise<void> => {
      await one.pause();
      await one.resume();
      assert.equal((await agent.run("echo on")).stdout, "on");
    };
    for (const paused of [false, true]) {
      if (paused) await machine.pause();
      const failed = assert.rejects(
        machine.checkpoint(dir, { keepRunning: true }),
        (error) => error instanceof CheckpointError && error.machineRuns,
      );
      await killSave(dir);
      await failed;
      assert.equal(existsSync(dir), false);
      if (paused) await machine.resume();
      await goesOn(machine);
    }
    const failed = assert.rejects(machine.checkpoint(dir, { keepRunning: true }));
    await killSave(dir);
    const adopted = await (await bench.open()).adopt(spec);
    assert.ok(adopted !== undefined);
    await failed;
    await goesOn(adopted);
    await adopted.stop();
    agent.close();
  });

  test("a machine that does not start is reported with what runsc said", async () => {
    const spec = await bench.spec(SMALL);
    const missing = { ...spec, agentDir: `${bench.dir}/no-such-agent` };
    await assert.rejects(driver.boot(missing), { message: /did not start: [^{]*no-such-agent/ });
    await assert.rejects(driver.restore(spec, `${bench.dir}/no-such-checkpoint`), {
      message: /did not start: [^{]*no-such-checkpoint/,
    });
  });

  test("at the limit the host's kernel is offered programs first, the sandbox and the agent later, booted or restored", async () => {
    const spec = await bench.spec(SMALL);
    const machine = await driver.boot(spec);
    const checkpoint = `${bench.dir}/offered`;
    await machine.checkpoint(checkpoint, { keepRunning: true });
    const again = await bench.spec(SMALL);
    const restored = await driver.restore(again, checkpoint);
    for (const each of [spec, again]) {
      const agent = await ready(bench, each);
      await agent.spawn("exec sleep 86400");
      // What has mapped a program of the guest's runs it.
      await eventually(10_000, () => {
        const scores = Object.fromEntries(["sleep", "envd"].map((name) => [name, bench.killScores(each.id, name)]));
        assert.deepEqual(scores, { sleep: [1000], envd: [LATER] });
      });
      agent.close();
    }
    for (const each of [machine, restored]) {
      assert.equal(Number(readFileSync(`/proc/${each.pid}/oom_score_adj`, "utf8")), LATER);
      await each.stop();
    }
  });

  test("a machine whose program the kernel has killed has room until the memory is back, and starts programs as before", async () => {
    const spec = await bench.spec(SMALL);
    const machine = await driver.boot(spec);
    const agent = await ready(bench, spec);
    let hasEnded = false;
    const bomb = agent.run(MEMORY_BOMB).finally(() => {
      hasEnded = true;
    });
    const moreBytes = (): number => {
      machine.memory();
      return bench.readLimits(spec.id).memoryBytes - SMALL.memoryBytes;
    };
    let more = moreBytes();
    for (; more === 0 && !hasEnded; more = moreBytes()) await sleep(2);
    assert.equal(more, ROOM_BYTES);
    await bomb;
    assert.ok((await machine.stats()).oomKills > 0);
    await eventually(10_000, () => assert.equal(moreBytes(), 0));
    // Seldom, one that was just being started has lost its life too.
    await eventually(10_000, async () =>
      assert.equal((await agent.run("echo hello; sleep 0; echo again")).stdout, "hello\nagain"),
    );
    await machine.stop();
    agent.close();
  });

  test("what the sandbox reads for a program until memory runs out ends the program, not the sandbox", {
    skip: NOT_PROTECTED,
  }, async () => {
    const spec = await bench.spec(SMALL);
    const machine = await driver.boot(spec);
    const agent = await ready(bench, spec);
    // The kernel's choice stands alone: no agent is asked.
    const end = await whileLookedAt(machine, Promise.race([agent.run(READING_BOMB), machine.exited]));
    assert.ok("exitCode" in end, "the machine has ended");
    assert.notEqual(end.exitCode, 0);
    assert.ok((await machine.stats()).oomKills > 0);
    // It answers.
    assert.equal(await agent.runs(1), false);
    await machine.stop();
    agent.close();
  });

  test("memory that no process holds ends who fills it, or the machine, which is said", async () => {
    const spec = await bench.spec(SMALL);
    const machine = await driver.boot(spec);
    const agent = await ready(bench, spec);
    const filling = agent.run(
      "mount -t tmpfs -o size=2g none /mnt && exec dd if=/dev/zero of=/mnt/big bs=64k count=16384",
    );
    const end = await whileLookedAt(machine, Promise.race([machine.exited, filling.catch(() => machine.exited)]));
    if ("reason" in end) assert.equal(end.reason, "out-of-memory");
    else {
      assert.notEqual(end.exitCode, 0);
      assert.ok((await machine.stats()).oomKills > 0);
    }
    await driver.destroy(spec.id);
    agent.close();
  });

  test("a sandbox that dies is reported with what it said", async () => {
    const spec = await bench.spec(SMALL);
    const machine = await driver.boot(spec);
    process.kill(machine.pid, "SIGKILL");
    assert.equal((await machine.exited).reason, "crashed");
    await driver.destroy(spec.id);
    assert.deepEqual(await driver.leftovers(), []);
  });

  test("a sandbox ends with its gofer, also while it stands still or after a restore", async () => {
    const spec = await bench.spec(SMALL);
    const machine = await driver.boot(spec);
    (await ready(bench, spec)).close();
    const checkpoint = `${bench.dir}/without-gofer`;
    await machine.checkpoint(checkpoint, { keepRunning: true });
    await machine.pause();
    const again = await bench.spec(SMALL);
    const restored = await driver.restore(again, checkpoint);
    (await ready(bench, again)).close();
    const another = await bench.spec(SMALL);
    const gone = await bench.open();
    const unwatched = await gone.restore(another, checkpoint);
    await unwatched.pause();
    await gone.close();
    for (const each of [machine, restored]) {
      process.kill(goferOf(each), "SIGKILL");
      assert.equal((await each.exited).reason, "crashed");
      await driver.destroy(each.id);
    }
    process.kill(goferOf(unwatched), "SIGKILL");
    assert.equal(
      await (await bench.open()).adopt(another),
      undefined,
      "a server that was not there then goes on with it",
    );
    await driver.destroy(another.id);
    assert.deepEqual(await driver.leftovers(), []);
  });

  test("a start killed at any moment is found and removed, and its id's parts with it", {
    timeout: patience(120_000),
  }, async () => {
    const unheard = await bench.openUnheard();
    for (const afterMs of KILL_AFTER_MS) {
      const spec = await bench.spec(SMALL);
      void unheard.boot(spec);
      await sleep(afterMs);
      bench.killCommands(spec.id);
      assert.deepEqual(await driver.leftovers(), [spec.id], `killed after ${afterMs} ms`);
      await driver.destroy(spec.id);
      assert.deepEqual(await driver.leftovers(), [], `killed after ${afterMs} ms`);
      assert.deepEqual(bench.processesOf(spec.id), [], `killed after ${afterMs} ms`);
    }
    assert.deepEqual(readdirSync(bench.uppersDir), []);
  });

  test("parts without a machine are found by themselves", async () => {
    const [sock, group] = [(await bench.spec(SMALL)).id, (await bench.spec(SMALL)).id];
    bench.leaveSocket(sock);
    for (const dir of bench.cgroupDirs(group)) mkdirSync(dir, { recursive: true });
    assert.deepEqual(new Set(await driver.leftovers()), new Set([sock, group]));
    await driver.destroy(sock);
    await driver.destroy(group);
    assert.deepEqual(await driver.leftovers(), []);
  });
});

async function ready(bench: GvisorBench, spec: MachineSpec): Promise<TestAgent> {
  const agent = new TestAgent(bench.agentAddress(spec));
  await agent.ready();
  return agent;
}

/** Looks at a machine while work is done in it, which gives it room after a kill. */
async function whileLookedAt<T>(machine: Machine, work: Promise<T>): Promise<T> {
  const looks = setInterval(() => machine.memory(), 2);
  try {
    return await work;
  } finally {
    clearInterval(looks);
  }
}

/** What of a file has no place on its disk yet, which comes before it is written there. undefined: this file system does not tell. */
async function unwrittenBytes(file: string): Promise<number | undefined> {
  const { exitCode, stdout } = await localRunner().run(["/usr/sbin/filefrag", "-v", "-b1", file], { check: false });
  if (exitCode !== 0) return undefined;
  // "0:  4096..  8191:  0..  0:  0:  last,unknown_loc,delalloc,eof"
  const extents = new TextDecoder().decode(stdout).matchAll(/^ *\d+: *(\d+)\.\. *(\d+):.*delalloc/gm);
  return extents.reduce((sum, [, first, last]) => sum + Number(last) - Number(first) + 1, 0);
}

/** Kills the program that captures a machine into this folder, once there is something in it. */
async function killSave(dir: string): Promise<void> {
  const pages = `${dir}/pages.img`;
  // To look for it takes longer than what it does from its first byte on.
  const pid = await eventually(10_000, () => {
    const found = processIds().find((each) => commandLine(each).includes(`-dir=${dir}`));
    assert.ok(found !== undefined, "nothing captures");
    return found;
  });
  while (!existsSync(pages) || statSync(pages).size === 0) await sleep(1);
  process.kill(pid, "SIGKILL");
}

function goferOf({ id }: Machine): number {
  const pid = processIds().find((each) => {
    const [program, ...args] = commandLine(each);
    return program === "runsc-gofer" && args.some((arg) => arg.includes(id));
  });
  assert.ok(pid !== undefined, `${id} has no gofer`);
  return pid;
}
