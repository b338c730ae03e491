import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { readdirSync, readFileSync } from "node:fs";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { startTicks } from "./proc.ts";
import { CommandError } from "./run.ts";
import { localRunner, localWatcher } from "./spawn.ts";

const text = (bytes: Uint8Array) => new TextDecoder().decode(bytes);
const shell = (script: string) => ["sh", "-c", script];

async function until(what: string, condition: () => boolean | Promise<boolean>): Promise<void> {
  for (const giveUpAt = Date.now() + 10_000; Date.now() < giveUpAt; await sleep(10)) {
    if (await condition()) return;
  }
  assert.fail(`not so after 10 s: ${what}`);
}

test("gives input, environment and folder, returns output and exit code", async () => {
  const result = await localRunner().run(shell('cat; pwd >&2; printf %s "$ONE$HOME" >&2; exit 3'), {
    stdin: "in\0put",
    env: { ONE: "1" },
    cwd: "/tmp",
    check: false,
  });
  assert.equal(text(result.stdout), "in\0put");
  assert.equal(text(result.stderr), "/tmp\n1");
  assert.deepEqual([result.exitCode, result.signal, result.timedOut], [3, 0, false]);
});

test("a failing command is a CommandError that says why, unless it is not to be checked", async () => {
  await assert.rejects(
    localRunner().run(shell("echo broken >&2; exit 4")),
    (error) => error instanceof CommandError && error.result.exitCode === 4 && error.message.endsWith("broken"),
  );
  await assert.rejects(localRunner().run(["no-such-program"], { check: false }), /cannot start no-such-program/);
});

test("does not wait for a grandchild that holds the pipe", async () => {
  const startedAt = Date.now();
  const result = await localRunner().run(shell("sleep 30 & echo $!"));
  const pid = Number(text(result.stdout));
  assert.ok(Date.now() - startedAt < 5000);
  assert.notEqual(startTicks(pid), undefined);
  process.kill(pid, "SIGKILL");
});

test("a timeout kills the whole process group", async () => {
  const result = await localRunner().run(shell("sleep 60 & echo $!; wait"), { timeoutMs: 200, check: false });
  assert.deepEqual([result.exitCode, result.signal, result.timedOut], [-1, 9, true]);
  await until("the grandchild is gone", () => startTicks(Number(text(result.stdout))) === undefined);
});

test("output past the limit is dropped and said to be", async () => {
  const result = await localRunner().run(shell("head -c 9000000 /dev/zero"));
  assert.deepEqual([result.stdout.length, result.truncated], [8 * 1024 * 1024, true]);
});

test("a log file gets what the command leaves running writes", async () => {
  const dir = await mkdtemp(join(tmpdir(), "aenv-spawn-"));
  const [logFile, gate] = [join(dir, "log"), join(dir, "gate")];
  const script = `echo one; (while [ ! -e ${gate} ]; do sleep 0.02; done; echo two >&2) &`;
  const result = await localRunner().run(shell(script), { logFile });
  assert.equal(result.stdout.length, 0);
  await writeFile(gate, "");
  await until("both lines are there", async () => (await readFile(logFile, "utf8")) === "one\ntwo\n");
  await rm(dir, { recursive: true });
});

test("the watcher tells when a process is gone, and that another one is not it", async () => {
  const watcher = localWatcher();
  const child = spawn("sleep", ["60"], { stdio: "ignore" });
  const pid = child.pid ?? assert.fail("not started");
  const ticks = startTicks(pid) ?? assert.fail("not there");
  assert.equal((await watcher.exited(pid, ticks + 1n)).exitCode, -1);
  const exits = Promise.all([watcher.exited(pid, ticks), watcher.exited(pid, 0n)]);
  let settled = false;
  void exits.then(() => {
    settled = true;
  });
  await sleep(250);
  assert.equal(settled, false);
  child.kill("SIGKILL");
  assert.equal((await exits).length, 2);
  watcher.close();
});

test("to the watcher a process has ended when nobody has waited for it yet, and it keeps no file open", async () => {
  const watcher = localWatcher();
  const open = () => readdirSync("/proc/self/fd").length;
  // The shell becomes a program that waits for none of its children.
  const parent = spawn("sh", ["-c", "sleep 0.3 & echo $!; exec sleep 60"], { stdio: ["ignore", "pipe", "ignore"] });
  const [line] = (await once(parent.stdout, "data")) as [Buffer];
  const pid = Number(String(line));
  const before = open();
  await watcher.exited(pid, 0n);
  assert.match(readFileSync(`/proc/${pid}/stat`, "utf8"), /\) Z /);
  assert.equal((await watcher.exited(pid, 0n)).exitCode, -1);
  void watcher.exited(parent.pid ?? 0, 0n);
  assert.equal(open(), before + 1);
  watcher.close();
  assert.equal(open(), before);
  parent.kill("SIGKILL");
});
