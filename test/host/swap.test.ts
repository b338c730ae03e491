import assert from "node:assert/strict";
import { type ChildProcessByStdio, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, readdirSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import type { Readable, Writable } from "node:stream";
import { after, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { MIB } from "#domain";
import { armFaults } from "#lib/fault";
import { createLogger, silentLogger } from "#lib/log";
import type { CommandRunner } from "#lib/run";
import { localRunner } from "#lib/spawn";
import { SwapFiles } from "#lib/swap-files";
import { bringBack } from "#lib/swapped";
import { openCgroups } from "../../src/driver/cgroup/index.ts";
import { removeSwapFiles, swapFilesIn } from "./swap-files.ts";

const HELD_BYTES = 24 * MIB;
/** Room for what Python itself holds, which differs; less than twice as much as is held. */
const LIMIT_BYTES = 44 * MIB;
const FILE_BYTES = 64 * MIB;
/** Nothing used from one reading to the next is rest. */
const QUIET_MS = 100;
const QUIET_WITHIN_MS = 10_000;

const dir = mkdtempSync(join(tmpdir(), "aenv-swap-"));
const cgroups = openCgroups(`/aenv-swap-${process.pid}`);
/** Whatever swap this host has besides, ours is used first. */
const runner: CommandRunner = {
  run: (argv, options) =>
    localRunner().run(argv[0] === "swapon" ? ["swapon", "--priority", "100", ...argv.slice(1)] : argv, options),
};
const logger = createLogger("error", (line) => process.stderr.write(`${line}\n`));
const options = { dir, runner, logger, fileBytes: FILE_BYTES, maxFiles: 40 };
const ours = () => swapFilesIn(dir);

function moreThanFree(): number {
  return Number(/SwapFree:\s+(\d+)/.exec(readFileSync("/proc/meminfo", "utf8"))?.[1]) * 1024 + 1;
}

after(async () => {
  for (const name of cgroups.list()) await cgroups.remove(name);
  await cgroups.removeParent();
  await removeSwapFiles(dir);
  assert.deepEqual(ours(), []);
});

/** A process in a group of its own that holds random bytes, and for each line it is sent says whether they are as they were, or
 *  takes as many more. */
class Holder implements AsyncDisposable {
  readonly #child: ChildProcessByStdio<Writable, Readable, null>;
  readonly #said: AsyncIterator<string>;

  private constructor(group: string, bytes: number) {
    const program = `
import hashlib, os, sys
sys.stdin.readline()
held = [os.urandom(${bytes})]
before = hashlib.sha256(held[0]).hexdigest()
print("held", flush=True)
for line in sys.stdin:
    if line == "more\\n": held.append(os.urandom(${bytes}))
    print(before == hashlib.sha256(held[0]).hexdigest(), flush=True)`;
    this.#child = spawn("python3", ["-c", program], { stdio: ["pipe", "pipe", "inherit"] });
    this.#said = createInterface({ input: this.#child.stdout })[Symbol.asyncIterator]();
    cgroups.join(group, this.pid);
  }

  get pid(): number {
    return this.#child.pid ?? 0;
  }

  static async start(group: string, bytes = HELD_BYTES): Promise<Holder> {
    await cgroups.create(group, { vcpus: 1, memoryBytes: LIMIT_BYTES, diskBytes: 0, pidsMax: 64 });
    const holder = new Holder(group, bytes);
    assert.equal(await holder.ask("hold"), "held");
    return holder;
  }

  /** undefined: it has ended. */
  async ask(line: "hold" | "same" | "more"): Promise<string | undefined> {
    this.#child.stdin.write(`${line}\n`);
    const { value, done } = await this.#said.next();
    return done ? undefined : value;
  }

  async end(): Promise<string | null> {
    if (this.#child.exitCode === null && this.#child.signalCode === null) await once(this.#child, "exit");
    return this.#child.signalCode;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#child.kill("SIGKILL");
    await this.end();
  }
}

/** What a group has used when it has come to rest: whoever has answered may still be on its way back to waiting. */
async function quietCpuUsec(group: string): Promise<number> {
  const giveUpAtMs = Date.now() + QUIET_WITHIN_MS;
  for (let beforeUsec = Number.NaN; ; ) {
    const { cpuUsec } = cgroups.stats(group);
    if (cpuUsec === beforeUsec) return cpuUsec;
    assert.ok(Date.now() < giveUpAtMs, `${group} does not come to rest`);
    beforeUsec = cpuUsec;
    await sleep(QUIET_MS);
  }
}

/** Makes room for what a holder holds, in a file that was made for it. */
async function makeRoom(): Promise<SwapFiles> {
  const files = await SwapFiles.open(options);
  assert.equal(await files.room(moreThanFree()), true);
  return files;
}

test("a group's limit is set higher and lower while it runs; one that what is in use does not fit is refused, and nobody ends for it", async () => {
  await using holder = await Holder.start("limited");
  const set = [2 * LIMIT_BYTES, LIMIT_BYTES, HELD_BYTES / 2, 2 * LIMIT_BYTES].map((bytes) =>
    cgroups.limitMemory("limited", bytes),
  );
  assert.deepEqual(set, [true, true, false, true]);
  assert.equal(await holder.ask("same"), "True");
  assert.equal(await holder.ask("more"), "True");
  assert.equal(cgroups.stats("limited").oomKills, 0);
  assert.equal(cgroups.limitMemory("unknown", LIMIT_BYTES), false);
});

test("memory of a group goes to a swap file made for it, and comes back byte by byte", async () => {
  await makeRoom();
  assert.deepEqual(
    ours().map(({ usedBytes }) => usedBytes),
    [0],
  );
  {
    await using holder = await Holder.start("held");
    const heldBytes = cgroups.memory("held", LIMIT_BYTES)?.usedBytes ?? 0;
    assert.ok(heldBytes >= HELD_BYTES);
    const gone = await cgroups.reclaim("held");
    assert.ok(gone >= HELD_BYTES * 0.9, `${gone} bytes went of ${heldBytes}`);
    assert.ok((cgroups.memory("held", LIMIT_BYTES)?.usedBytes ?? 0) >= HELD_BYTES, "what is in swap counts");

    // A server that comes after this one takes the file up, and takes it away only when next to nothing is in it.
    const later = await SwapFiles.open(options);
    const path = ours()[0]?.path ?? "";
    await later.trim();
    assert.ok(existsSync(path));
    assert.equal(await holder.ask("same"), "True");
  }
  const last = await SwapFiles.open(options);
  await last.trim();
  assert.deepEqual(ours(), []);
});

test("a file in which next to nothing is left is taken away, and that goes back to memory", async () => {
  const files = await makeRoom();
  await using holder = await Holder.start("little", MIB);
  assert.ok((await cgroups.reclaim("little")) >= MIB);
  assert.ok((ours()[0]?.usedBytes ?? 0) > 0);
  await files.trim();
  assert.deepEqual([ours(), readdirSync(dir)], [[], []]);
  assert.equal(await holder.ask("same"), "True");
});

test("what a process has in swap is brought back for it while it does nothing", async () => {
  const files = await makeRoom();
  {
    await using holder = await Holder.start("back");
    await cgroups.reclaim("back");
    const cpuUsec = await quietCpuUsec("back");
    const { memoryBytes } = cgroups.stats("back");
    assert.ok(memoryBytes < HELD_BYTES * 0.2, `${memoryBytes} bytes stayed`);
    const { signal } = new AbortController();
    await bringBack(holder.pid, { mostBytes: MIB, signal });
    assert.ok(cgroups.stats("back").memoryBytes < memoryBytes + 8 * MIB, "it takes more than it may");
    await bringBack(holder.pid, { mostBytes: 2 * HELD_BYTES, signal });
    const after = cgroups.stats("back");
    assert.ok(after.memoryBytes >= HELD_BYTES, `${after.memoryBytes} bytes are back`);
    assert.equal(after.cpuUsec, cpuUsec);
    assert.equal(await holder.ask("same"), "True");
  }
  await files.trim();
  assert.deepEqual(ours(), []);
});

test("a group does not get its limit twice, in swap and in memory", async () => {
  const files = await makeRoom();
  {
    await using holder = await Holder.start("twice");
    await cgroups.reclaim("twice");
    cgroups.memory("twice", LIMIT_BYTES);
    assert.equal(await holder.ask("more"), undefined);
    assert.equal(await holder.end(), "SIGKILL");
    assert.ok(cgroups.stats("twice").oomKills > 0);
  }
  await files.trim();
  assert.deepEqual(ours(), []);
});

for (const [point, left] of [
  ["swap.reserved", 0],
  ["swap.on", 1],
  ["swap.off", 0],
] as const) {
  test(`of a server that dies at ${point} the next one has ${left === 0 ? "nothing" : "a file in use"}`, async () => {
    const options = { dir, runner, logger: silentLogger, fileBytes: FILE_BYTES, maxFiles: 40 };
    const dying = await SwapFiles.open(options);
    const died = Promise.withResolvers<void>();
    armFaults((passed) => {
      if (passed !== point) return Promise.resolve();
      died.resolve();
      return new Promise(() => {});
    });
    void dying.room(moreThanFree()).then(() => dying.trim());
    await died.promise;
    armFaults(undefined);
    const next = await SwapFiles.open(options);
    assert.deepEqual([ours().length, readdirSync(dir).length], [left, left]);
    await next.trim();
    assert.deepEqual([ours(), readdirSync(dir)], [[], []]);
  });
}
