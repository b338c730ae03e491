import assert from "node:assert/strict";
import { existsSync, readdirSync, readFileSync, statSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { MIB, type Resources } from "#domain";
import type { Machine } from "#driver";
import { processIds } from "#lib/proc";
import { FirecrackerBench } from "./firecracker/bench.ts";
import { whyNotTested } from "./firecracker/probe.ts";
import { toyGuest } from "./firecracker/toy.ts";
import { fromEnvironment } from "./machines/host.ts";

const SMALL: Resources = { vcpus: 1, memoryBytes: 128 * MIB, diskBytes: 64 * MIB, pidsMax: 512 };
/** Calls of Firecracker's API, each some tenths of a millisecond. */
const CALLS_TO_BOOT = 8;
const CALLS_TO_RESTORE = 1;

const skip = await whyNotTested();

describe("Firecracker's processes and what they can reach, toy guest", { skip, timeout: 120_000 }, () => {
  let bench: FirecrackerBench;

  before(async () => {
    bench = await FirecrackerBench.open(toyGuest);
  });
  after(() => bench[Symbol.asyncDispose]());

  const boot = async (): Promise<Machine> => bench.driver.boot(await bench.spec(SMALL));

  test("a machine is a user of its own, in namespaces, a root folder and a cgroup of its own, and filtered", async () => {
    const spec = await bench.spec(SMALL);
    const machines = [await bench.driver.boot(spec), await boot()];
    const seen = machines.map(({ pid }) => {
      const status = readFileSync(`/proc/${pid}/status`, "utf8");
      const field = (name: string): string => new RegExp(`^${name}:\\s*(.*)$`, "m").exec(status)?.[1] ?? "";
      const capabilities = field("CapEff");
      const threads = readdirSync(`/proc/${pid}/task`).map(
        (thread) => /^Seccomp:\s*(\d)$/m.exec(readFileSync(`/proc/${pid}/task/${thread}/status`, "utf8"))?.[1],
      );
      return {
        uid: Number(field("Uid").split("\t")[0]),
        capabilities,
        threads,
        root: statSync(`/proc/${pid}/root`).ino,
      };
    });
    for (const { uid, capabilities, threads } of seen) {
      assert.ok(uid > 1_880_000_000 && uid < 1_880_065_536, `uid ${uid}`);
      assert.equal(Number.parseInt(capabilities, 16), 0, `capabilities ${capabilities}`);
      assert.deepEqual(new Set(threads), new Set(["2"]), "a thread is not filtered");
    }
    assert.equal(new Set(seen.map(({ uid }) => uid)).size, 2);
    assert.equal(new Set(seen.map(({ root }) => root)).size, 2);
    const [first] = machines;
    assert.ok(first !== undefined);
    for (const namespace of ["net", "pid", "mnt"]) {
      assert.notEqual(statSync(`/proc/${first.pid}/ns/${namespace}`).ino, statSync(`/proc/self/ns/${namespace}`).ino);
    }
    assert.equal(statSync(`/proc/${first.pid}/ns/net`).ino, statSync(spec.network.netnsPath).ino);
    const groups = bench.cgroupDirs(first.id);
    for (const dir of groups) {
      assert.deepEqual(readFileSync(join(dir, "cgroup.procs"), "utf8").trim(), String(first.pid));
    }
    for (const machine of machines) await machine.stop();
    for (const dir of groups) assert.ok(!existsSync(dir));
  });

  test("a slot that waits has its process already, which goes with the slot", async () => {
    const spec = await bench.spec(SMALL);
    await bench.driver.prepare(spec.network);
    await bench.driver.prepare(spec.network);
    const [waiting, ...others] = processesIn(spec.network.netnsPath);
    assert.ok(waiting !== undefined && others.length === 0);
    const machine = await bench.driver.boot(spec);
    assert.equal(machine.pid, waiting, "another process was started");
    await machine.stop();
    const { network } = await bench.spec(SMALL);
    await bench.driver.prepare(network);
    assert.equal(processesIn(network.netnsPath).length, 1);
    await bench.driver.unprepare(network);
    await bench.driver.unprepare(network);
    assert.deepEqual(processesIn(network.netnsPath), []);
  });

  test("a machine's process can make no file, nor put another in the place of one that we go by", async () => {
    const machine = await boot();
    const root = bench.jailOf(machine.id);
    const uid = Number(/^Uid:\s*(\d+)/m.exec(readFileSync(`/proc/${machine.pid}/status`, "utf8"))?.[1]);
    // All that a process which is no longer ours can do about names: as its user, in its root folder.
    const asProcess = async (command: string): Promise<number> =>
      (
        await bench.host.runner.run(["setpriv", `--reuid=${uid}`, "--clear-groups", "sh", "-c", command], {
          check: false,
          cwd: root,
        })
      ).exitCode;
    assert.equal(await asProcess("test -w upper"), 0);
    const names = readdirSync(root, { recursive: true, withFileTypes: true });
    for (const { name, parentPath } of names) {
      assert.notEqual(
        await asProcess(`mv '${join(parentPath, name)}' x || rm -rf '${join(parentPath, name)}'`),
        0,
        name,
      );
    }
    for (const dir of [root, ...names.filter((entry) => entry.isDirectory()).map((e) => join(e.parentPath, e.name))]) {
      assert.notEqual(await asProcess(`ln -s /etc/passwd '${dir}/x' || mkdir '${dir}/y' || touch '${dir}/z'`), 0, dir);
    }
    // What it was given to write a snapshot into is its own no more.
    const dir = join(bench.host.dir, "sealed");
    await machine.checkpoint(dir, { keepRunning: true });
    for (const name of readdirSync(dir)) {
      const { uid: owner, mode } = statSync(join(dir, name));
      assert.deepEqual([owner, mode & 0o022], [0, 0], name);
    }
    assert.deepEqual(
      readdirSync(root).filter((name) => name.endsWith(".new")),
      [],
    );
    await machine.stop();
  });

  test("a machine whose process is killed has crashed, which is said", async () => {
    const machine = await boot();
    process.kill(machine.pid, "SIGKILL");
    const exit = await machine.exited;
    assert.equal(exit.reason, "crashed");
    await bench.driver.destroy(machine.id);
    assert.deepEqual(await bench.driver.leftovers(), []);
  });

  test("a machine that does not start is reported with what Firecracker said", async () => {
    const spec = await bench.spec({ ...SMALL, memoryBytes: 0 });
    await assert.rejects(bench.driver.boot(spec), { message: /did not start/ });
    assert.deepEqual(await bench.driver.leftovers(), []);
  });

  test("the host holds a machine's process to its memory, processors and threads", async () => {
    const machine = await bench.driver.boot(await bench.spec({ ...SMALL, vcpus: 0.5 }));
    const [memory = "", cpu = memory, pids = memory] = bench.cgroupDirs(machine.id);
    const read = (dir: string, v1: string, v2: string): number =>
      Number.parseInt(readFileSync(join(dir, existsSync(join(dir, v1)) ? v1 : v2), "utf8"), 10);
    const limit = read(memory, "memory.limit_in_bytes", "memory.max");
    assert.ok(limit > SMALL.memoryBytes && limit <= SMALL.memoryBytes + 64 * MIB, `${limit}`);
    assert.equal(read(cpu, "cpu.cfs_quota_us", "cpu.max"), 50_000);
    assert.ok(read(pids, "pids.max", "pids.max") <= 32);
    await machine.stop();
  });

  test("a start takes so many calls of Firecracker's API and no more", async () => {
    const machine = await boot();
    const dir = join(bench.host.dir, "counted");
    await machine.checkpoint(dir, { keepRunning: false });
    const restored = await bench.driver.restore(await bench.spec(SMALL), dir);
    await restored.stop();
    assert.deepEqual(bench.apiCalls().slice(-2), [CALLS_TO_BOOT, CALLS_TO_RESTORE]);
    process.stdout.write(
      `calls of Firecracker's API: ${CALLS_TO_BOOT} for a boot, ${CALLS_TO_RESTORE} for a restore\n`,
    );
  });

  test("machines outlive an upgrade, under whichever name the program comes, and keep their version", async () => {
    const spec = await bench.spec(SMALL);
    const before = await bench.driver.boot(spec);
    const renamed = join(bench.host.dir, "firecracker-v9-x86_64");
    symlinkSync(fromEnvironment("AENV_TEST_FIRECRACKER"), renamed);
    const driver = await bench.open({ firecrackerPath: renamed });
    const adopted = await driver.adopt(spec);
    assert.equal(adopted?.pid, before.pid);
    assert.equal(adopted?.version, before.version);
    const after = await driver.boot(await bench.spec(SMALL));
    for (const machine of [adopted, after]) await machine?.stop();
    assert.deepEqual(await driver.leftovers(), []);
  });

  test("many that stop at once leave nothing, and none of them fails", async () => {
    const machines = await Promise.all(Array.from({ length: 6 }, boot));
    await Promise.all(machines.map((machine) => machine.stop()));
    assert.deepEqual(await bench.driver.leftovers(), []);
  });
});

/** Pids of all processes in a network namespace. */
function processesIn(netnsPath: string): number[] {
  const { ino } = statSync(netnsPath);
  const isInside = (pid: number): boolean => {
    try {
      return statSync(`/proc/${pid}/ns/net`).ino === ino;
    } catch {
      return false; // It has ended, or is nobody's to look at.
    }
  };
  return processIds().filter(isInside);
}
