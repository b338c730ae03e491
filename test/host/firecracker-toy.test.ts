import assert from "node:assert/strict";
import { closeSync, openSync, readFileSync, truncateSync, writeFileSync, writeSync } from "node:fs";
import { readdir, readFile, rm } from "node:fs/promises";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { MIB, type Resources } from "#domain";
import { CheckpointError, type Machine } from "#driver";
import { eventually } from "../../src/driver/testing/agent.ts";
import { driverSuite } from "../../src/driver/testing.ts";
import { FirecrackerBench } from "./firecracker/bench.ts";
import { whyNotTested } from "./firecracker/probe.ts";
import { readToyMemory, toyGuest } from "./firecracker/toy.ts";

const SMALL: Resources = { vcpus: 1, memoryBytes: 128 * MIB, diskBytes: 64 * MIB, pidsMax: 512 };
const NO_PROGRAMS = "the toy guest runs no programs";
const MAX_LAYERS = 5;
const PAGE_BYTES = 4096;

const skip = await whyNotTested();

if (skip === undefined) {
  driverSuite("firecracker, toy guest", () => FirecrackerBench.open(toyGuest), {
    state: NO_PROGRAMS,
    limits: NO_PROGRAMS,
  });
}

describe("what the Firecracker driver does with memory and processes, toy guest", { skip, timeout: 120_000 }, () => {
  let bench: FirecrackerBench;
  let checkpoints = 0;

  before(async () => {
    bench = await FirecrackerBench.open(toyGuest);
  });
  after(() => bench[Symbol.asyncDispose]());

  const newDir = (): string => {
    checkpoints += 1;
    return join(bench.host.dir, `checkpoint-${checkpoints}`);
  };
  const boot = async (): Promise<Machine> => bench.driver.boot(await bench.spec(SMALL));
  const restore = async (dir: string): Promise<Machine> => bench.driver.restore(await bench.spec(SMALL), dir);
  const layersOf = async (dir: string): Promise<string[]> =>
    JSON.parse(await readFile(join(dir, "checkpoint.json"), "utf8")).layers;
  /** What a machine restored from this checkpoint counts from. */
  const countIn = async (dir: string): Promise<number> => {
    const machine = await restore(dir);
    const { count, consistent } = await readToyMemory(join(bench.jailOf(machine.id), "memory"));
    await machine.stop();
    assert.ok(consistent, `the memory of ${dir} is of several moments`);
    return count;
  };
  /** Waits until the guest has counted on, and captures it. */
  const capture = async (
    machine: Machine,
    after: number,
  ): Promise<{ dir: string; count: number; dirtyBytes?: number }> =>
    eventually(10_000, async () => {
      const dir = newDir();
      const { dirtyMemory } = await machine.checkpoint(dir, { keepRunning: true });
      const count = await countIn(dir);
      assert.ok(count > after, `${count} is not beyond ${after}`);
      const dirtyBytes = dirtyMemory?.reduce((sum, { length }) => sum + length, 0);
      return { dir, count, ...(dirtyBytes !== undefined && { dirtyBytes }) };
    });

  test("every checkpoint of a chain holds the memory of one moment, and later ones only add what was written", async () => {
    const machine = await boot();
    const taken = [];
    let last = await capture(machine, 0);
    for (let at = 0; at < 2 * MAX_LAYERS; at += 1) {
      const before = last.count;
      last = await capture(machine, before);
      taken.push(last);
      assert.ok((await layersOf(last.dir)).length <= MAX_LAYERS);
      // A page for each count, and the counter's.
      const written = (last.count - before + 2) * PAGE_BYTES;
      assert.ok((last.dirtyBytes ?? 0) > 0 && (last.dirtyBytes ?? 0) <= written, `${last.dirtyBytes} of ${written}`);
    }
    await machine.stop();
    // Each is whole by itself.
    for (const [at, { dir, count }] of taken.entries()) {
      assert.equal(await countIn(dir), count);
      if (at % 2 === 0) await rm(dir, { recursive: true });
    }
    const [, second] = taken;
    assert.equal(await countIn(second?.dir ?? ""), second?.count);
  });

  /** Captures a machine that runs until one more checkpoint has as many layers as there may be. */
  const captureUntilLong = async (machine: Machine): Promise<void> => {
    for (;;) {
      const dir = newDir();
      await machine.checkpoint(dir, { keepRunning: true });
      if ((await layersOf(dir)).length === MAX_LAYERS - 1) return;
    }
  };
  const checkpoint = async (machine: Machine): Promise<string> => {
    const dir = newDir();
    await machine.checkpoint(dir, { keepRunning: true });
    return dir;
  };

  test("where a chain cannot be made shorter the next checkpoint is complete by itself", async () => {
    const machine = await boot();
    await captureUntilLong(machine);
    const failing = bench.holdNext("applyLayers");
    assert.equal((await layersOf(await checkpoint(machine))).length, MAX_LAYERS);
    await failing.reached;
    bench.failNext("applyLayers");
    failing.fail();
    assert.equal((await layersOf(await checkpoint(machine))).length, 1);
    const { dir, count } = await capture(machine, 0);
    await machine.stop();
    assert.equal(await countIn(dir), count);
  });

  test("a machine that ends while its chain is made shorter ends at once, and leaves nothing", async () => {
    const machine = await boot();
    await captureUntilLong(machine);
    const held = bench.holdNext("applyLayers");
    const dir = await checkpoint(machine);
    await held.reached;
    const stopped = machine.stop();
    await machine.exited;
    held.goOn();
    await stopped;
    assert.deepEqual(await bench.driver.leftovers(), []);
    await countIn(dir);
  });

  test("a server that is killed while it makes a chain shorter leaves one that the next one makes shorter", async () => {
    const spec = await bench.spec(SMALL);
    const machine = await bench.driver.boot(spec);
    await captureUntilLong(machine);
    const lost = bench.holdNext("applyLayers");
    await checkpoint(machine);
    await lost.reached;
    const driver = await bench.open();
    const adopted = await driver.adopt(spec);
    assert.ok(adopted !== undefined);
    const layers = await layersOf(await checkpoint(adopted));
    assert.equal(layers.length, 3);
    const kept = await readdir(join(bench.driverDir, "machines", spec.id, "base"));
    assert.deepEqual(kept.sort(), layers.toSorted());
    const { dir, count } = await capture(adopted, 0);
    lost.fail();
    await adopted.stop();
    assert.equal(await countIn(dir), count);
  });

  test("a chain goes on in what was restored from it", async () => {
    const machine = await boot();
    let last = await capture(machine, 0);
    await machine.stop();
    for (let generation = 0; generation < 4; generation += 1) {
      const next = await restore(last.dir);
      await rm(last.dir, { recursive: true });
      last = await capture(next, last.count);
      last = await capture(next, last.count);
      await next.stop();
    }
    assert.equal(await countIn(last.dir), last.count);
  });

  test("after a checkpoint that failed half-way the next one is complete all the same", async () => {
    const machine = await boot();
    const first = await capture(machine, 0);
    // Of what is copied, and of what comes after the snapshot.
    for (const operations of [["copy"], ["dataRanges", "unsharedRanges"]] as const) {
      bench.failNext(...operations);
      const failed = machine.checkpoint(newDir(), { keepRunning: true });
      await assert.rejects(failed, (error) => error instanceof CheckpointError && error.machineRuns);
      await capture(machine, first.count);
    }
    await machine.stop();
  });

  test("a disk that is written to while it is copied makes no checkpoint, and the machine goes on", async () => {
    const machine = await boot();
    const held = bench.holdNext("copy");
    const refused = machine.checkpoint(newDir(), { keepRunning: true });
    await held.reached;
    const upper = openSync(join(bench.jailOf(machine.id), "upper"), "r+");
    writeSync(upper, "x", 0);
    closeSync(upper);
    held.goOn();
    await assert.rejects(
      refused,
      (error) => error instanceof CheckpointError && error.machineRuns && /was written to/.test(String(error.cause)),
    );
    await capture(machine, 0);
    await machine.stop();
  });

  test("a server that is killed in the middle of a checkpoint leaves a machine whose next one is complete", async () => {
    const spec = await bench.spec(SMALL);
    const machine = await bench.driver.boot(spec);
    const first = await capture(machine, 0);
    // What the killed server would have done next never comes.
    const release = bench.holdNext("copy");
    const lost = machine.checkpoint(newDir(), { keepRunning: true }).catch(() => {});
    await release.reached;
    const driver = await bench.open();
    const adopted = await driver.adopt(spec);
    assert.ok(adopted !== undefined);
    await adopted.resume();
    await capture(adopted, first.count);
    release.fail();
    await lost;
    await adopted.stop();
  });

  test("clones of one checkpoint map the same file", async () => {
    const machine = await boot();
    const { dir } = await capture(machine, 0);
    await machine.stop();
    const clones = [await restore(dir), await restore(dir), await restore(dir)];
    const mapped = clones.map(({ pid }) => memoryMapping(pid));
    assert.ok(mapped[0] !== undefined);
    assert.deepEqual(new Set(mapped).size, 1, `${mapped}`);
    for (const clone of clones) await clone.stop();
  });

  test("memories that an earlier server assembled are not trusted", async () => {
    const machine = await boot();
    const first = await capture(machine, 0);
    const second = await capture(machine, first.count);
    await machine.stop();
    const layers = await layersOf(second.dir);
    // As a power cut leaves it: the name and the size are there, the bytes are not.
    const hollow = join(bench.driverDir, "assembled", layers.at(-1) ?? "");
    await rm(hollow, { force: true });
    writeFileSync(hollow, "");
    truncateSync(hollow, SMALL.memoryBytes);
    await bench.open();
    assert.equal(await countIn(second.dir), second.count);
  });

  test("without hardware every checkpoint is full, and is not for hosts that have it", async () => {
    await using pvm = await FirecrackerBench.open(toyGuest, "pvm");
    assert.equal(pvm.driver.name, "firecracker-pvm");
    const machine = await pvm.driver.boot(await pvm.spec(SMALL));
    const dir = join(bench.host.dir, "pvm");
    for (const name of ["1", "2"]) {
      assert.deepEqual(await machine.checkpoint(`${dir}-${name}`, { keepRunning: true }), {});
      assert.equal((await layersOf(`${dir}-${name}`)).length, 1);
    }
    await machine.stop();
    const again = await pvm.driver.restore(await pvm.spec(SMALL), `${dir}-2`);
    assert.ok((await readToyMemory(join(pvm.jailOf(again.id), "memory"))).consistent);
    await again.stop();
    await assert.rejects(restore(`${dir}-2`), { kind: "conflict", message: /was made on pvm, this host has kvm/ });
    assert.deepEqual(await bench.driver.leftovers(), []);
  });
});

/** `device:inode` of the file that is the guest's memory. */
function memoryMapping(pid: number): string | undefined {
  const line = readFileSync(`/proc/${pid}/maps`, "utf8")
    .split("\n")
    .find((text) => text.endsWith("/memory"));
  const [, , , device, inode] = line?.split(/\s+/) ?? [];
  return inode === undefined ? undefined : `${device}:${inode}`;
}
