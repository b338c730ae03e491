import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, readFileSync } from "node:fs";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, beforeEach, type TestContext, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { connectKeeper, type Keeper } from "#lib/keeper";
import { startTicks } from "#lib/proc";
import { localRunner } from "#lib/spawn";

const nativeDir = join(import.meta.dirname, "../../native");
const text = (bytes: Uint8Array) => new TextDecoder().decode(bytes);
const shell = (script: string) => ["sh", "-c", script];

const buildDir = mkdtempSync(join(tmpdir(), "aenv-keeper-build-"));
const binary = join(buildDir, "keeper");

beforeEach(async () => {
  if (existsSync(binary)) return;
  // Go finds its caches by the environment of whoever runs the tests.
  const { PATH = "", HOME = "/root", GOPROXY = "" } = process.env;
  await localRunner().run(["go", "build", "-o", binary, "./cmd/keeper"], {
    cwd: nativeDir,
    env: { PATH, HOME, ...(GOPROXY === "" ? {} : { GOPROXY }) },
    timeoutMs: 300_000,
  });
});

after(() => rm(buildDir, { recursive: true }));

interface Service {
  readonly name: string;
  readonly script: string;
}

/** A data folder in which keepers are started one after the other, with a client that outlives them. */
class Bench {
  readonly dir: string;
  readonly keeper: Keeper;
  #process: ChildProcess | undefined;

  constructor(dir: string) {
    this.dir = dir;
    this.keeper = connectKeeper(this.path("keeper.sock"));
  }

  path(name: string): string {
    return join(this.dir, name);
  }

  async configure(services: readonly Service[]): Promise<void> {
    const config = {
      socket: this.path("keeper.sock"),
      runDir: this.dir,
      lockFile: this.path("keeper.lock"),
      version: "test",
      services: services.map(({ name, script }) => ({
        name,
        argv: shell(script),
        env: {},
        cwd: "",
        logFile: this.path(`${name}.log`),
        logLimitBytes: 65536,
        pidFile: this.path(`${name}.pid`),
        stopTimeoutMs: 5000,
      })),
    };
    await writeFile(this.path("keeper.json"), JSON.stringify(config));
  }

  /** Returns the new keeper's pid once all its services run. */
  async start(): Promise<number> {
    const child = spawn(binary, ["-config", this.path("keeper.json")], { stdio: "ignore" });
    this.#process = child;
    await until("the keeper runs with its services", async () => {
      const status = await this.keeper.status();
      return status.pid === child.pid && status.services.every((service) => service.state === "running");
    });
    return child.pid ?? assert.fail("not started");
  }

  signal(signal: NodeJS.Signals): void {
    this.#process?.kill(signal);
  }

  /** Ends the keeper and returns how it ended. */
  async end(signal: NodeJS.Signals): Promise<{ code: number | null }> {
    const child = this.#process;
    if (child === undefined) return { code: null };
    this.#process = undefined;
    const ended = once(child, "exit");
    child.kill(signal);
    const [code] = await ended;
    return { code };
  }
}

async function setUp(t: TestContext, services: readonly Service[] = []): Promise<Bench> {
  const bench = new Bench(await mkdtemp(join(tmpdir(), "aenv-keeper-")));
  t.after(async () => {
    await bench.end("SIGTERM");
    await bench.keeper.close();
    await rm(bench.dir, { recursive: true });
  });
  await bench.configure(services);
  await bench.start();
  return bench;
}

async function until(what: string, condition: () => boolean | Promise<boolean>): Promise<void> {
  for (const giveUpAt = Date.now() + 10_000; Date.now() < giveUpAt; await sleep(10)) {
    if (await condition()) return;
  }
  assert.fail(`not so after 10 s: ${what}`);
}

const noisy = "trap 'exit 0' TERM; while :; do echo tick; sleep 0.05; done";

test("runs commands as asked", async (t) => {
  const { keeper } = await setUp(t);
  const result = await keeper.run(shell('cat; printf %s "$A" >&2; exit 3'), {
    stdin: "in\0put",
    env: { A: "1" },
    check: false,
  });
  assert.deepEqual([text(result.stdout), text(result.stderr), result.exitCode], ["in\0put", "1", 3]);
  await assert.rejects(keeper.run(["no-such-program"]), /cannot start no-such-program: .*PATH=/);
  assert.equal((await keeper.run(["sleep", "60"], { timeoutMs: 100, check: false })).timedOut, true);
});

test("tells the exit code of what a command left running, also where nobody tracked it in time", async (t) => {
  const { keeper } = await setUp(t);
  const result = await keeper.run(shell("(sleep 0.3; exit 7) >/dev/null 2>&1 & echo $!"));
  const pid = Number(text(result.stdout));
  const ticks = startTicks(pid) ?? assert.fail("not running");
  assert.equal((await keeper.exited(pid, ticks)).exitCode, 7);
  assert.equal((await keeper.exited(pid, ticks)).exitCode, 7);
});

test("services and what commands left running survive a killed keeper; the next one takes them up", async (t) => {
  const bench = await setUp(t, [{ name: "one", script: noisy }]);
  const { keeper } = bench;
  const left = await keeper.run(shell("sleep 60 >/dev/null 2>&1 & echo $!"));
  const leftPid = Number(text(left.stdout));
  const exit = keeper.exited(leftPid, startTicks(leftPid) ?? assert.fail("not running"));
  const [before] = (await keeper.status()).services;
  const { epoch } = await keeper.status();

  await bench.end("SIGKILL");
  const logged = (await readFile(bench.path("one.log"))).length;
  await until("the service goes on writing its log", () => readFileSync(bench.path("one.log")).length > logged);

  await bench.start();
  const status = await keeper.status();
  assert.notEqual(status.epoch, epoch);
  assert.equal(status.services[0]?.pid, before?.pid);
  assert.equal(status.services[0]?.restarts, 0);
  assert.equal(await readFile(bench.path("one.pid"), "utf8"), `${before?.pid}\n`);
  process.kill(leftPid, "SIGKILL");
  assert.equal((await exit).exitCode, -1);

  process.kill(before?.pid ?? 0, "SIGKILL");
  await until("the service taken up is started again", async () => {
    const [service] = (await keeper.status()).services;
    return service?.state === "running" && service.pid !== before?.pid;
  });
});

test("SIGTERM stops the services and leaves alone what commands left running", async (t) => {
  const bench = await setUp(t, [
    { name: "one", script: noisy },
    { name: "two", script: noisy },
  ]);
  const { services } = await bench.keeper.status();
  const left = await bench.keeper.run(shell("sleep 60 >/dev/null 2>&1 & echo $!"));
  const leftPid = Number(text(left.stdout));
  assert.deepEqual(await bench.end("SIGTERM"), { code: 0 });
  for (const { pid } of services) assert.equal(startTicks(pid), undefined);
  assert.notEqual(startTicks(leftPid), undefined);
  process.kill(leftPid, "SIGKILL");
  for (const name of ["one.pid", "two.pid", "keeper.pid", "keeper.sock"])
    assert.equal(existsSync(bench.path(name)), false);
});

test("SIGHUP replaces what changed; restartService replaces what it names", async (t) => {
  const bench = await setUp(t, [
    { name: "one", script: noisy },
    { name: "two", script: noisy },
  ]);
  await until("both services run", async () =>
    (await bench.keeper.status()).services.every(({ state }) => state === "running"),
  );
  const [one, two] = (await bench.keeper.status()).services;
  await bench.configure([
    { name: "one", script: noisy },
    { name: "two", script: `: newer; ${noisy}` },
  ]);
  bench.signal("SIGHUP");
  await until("the second service is another", async () => {
    const [, service] = (await bench.keeper.status()).services;
    return service?.state === "running" && service.pid !== two?.pid;
  });
  assert.equal((await bench.keeper.status()).services[0]?.pid, one?.pid);
  const pid = await bench.keeper.restartService("one");
  assert.notEqual(pid, one?.pid);
  assert.equal(startTicks(one?.pid ?? 0), undefined);
  await assert.rejects(bench.keeper.restartService("none"), /no such service/);
});

test("a second keeper on the same data is refused and told who is there", async (t) => {
  const bench = await setUp(t);
  const { pid } = await bench.keeper.status();
  const second = await localRunner().run([binary, "-config", bench.path("keeper.json")], { check: false });
  assert.equal(second.exitCode, 1);
  assert.match(text(second.stderr), new RegExp(`another keeper \\(pid ${pid}\\)`));
  assert.equal((await bench.keeper.status()).pid, pid);
});
