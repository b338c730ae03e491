import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { before, describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { CommandExitError, type CommandHandle, Sandbox } from "e2b";
import { openFiles } from "./host.ts";
import { api } from "./http.ts";
import { newSandbox, output, useServer } from "./sdk.ts";
import { sharedServer, until } from "./server.ts";

const MIB = 1024 * 1024;
const NAME = "small";
const SMALL_MIB = 256;

/** A template of 256 MiB, one processor. */
async function makeSmallTemplate(): Promise<void> {
  const server = await sharedServer();
  const asked = await api(server, "POST", "/v3/templates", { name: NAME, cpuCount: 1, memoryMB: SMALL_MIB });
  const { templateID, buildID } = asked.json as { templateID: string; buildID: string };
  const path = `/templates/${templateID}/builds/${buildID}`;
  assert.equal((await api(server, "POST", `/v2${path}`, { fromImage: server.baseImage })).status, 202);
  await until("the template", async () => {
    const { status } = (await api(server, "GET", `${path}/status`)).json as { status: string };
    assert.notEqual(status, "error");
    return status === "ready";
  });
}

async function smallSandbox(): Promise<Sandbox & AsyncDisposable> {
  useServer(await sharedServer());
  const sandbox = await Sandbox.create(NAME, { timeoutMs: 120_000 });
  return Object.assign(sandbox, {
    async [Symbol.asyncDispose]() {
      await Sandbox.kill(sandbox.sandboxId);
    },
  });
}

/** The file of the sandbox's group with the first of these names that is there: version 1 or 2 of cgroups. */
function cgroupFile(sandbox: Sandbox, ...names: string[]): string {
  const base = "/sys/fs/cgroup";
  for (const name of names) {
    const [controller = "", file = ""] = name.split("/");
    const root = existsSync(`${base}/${controller}`) ? `${base}/${controller}` : base;
    if (!existsSync(`${root}/aenv`)) continue;
    for (const server of readdirSync(`${root}/aenv`)) {
      const path = `${root}/aenv/${server}/${sandbox.sandboxId}-0001/${file}`;
      if (existsSync(path)) return path;
    }
  }
  throw new Error(`none of ${names.join(", ")} is there for ${sandbox.sandboxId}`);
}

function cpuSeconds(sandbox: Sandbox): number {
  const file = cgroupFile(sandbox, "cpuacct/cpuacct.usage", "unified/cpu.stat");
  const said = readFileSync(file, "utf8");
  return file.endsWith("cpuacct.usage") ? Number(said) / 1e9 : Number(/usage_usec (\d+)/.exec(said)?.[1]) / 1e6;
}

/** Starts a Python program that says a line when it has come to its limit, and goes on; returns what it said. */
async function tillItSays(sandbox: Sandbox, program: string): Promise<{ running: CommandHandle; said: string }> {
  let said = "";
  const running = await sandbox.commands.run(`exec python3 -c '${program}'`, {
    background: true,
    timeoutMs: 0,
    onStdout: (text) => {
      said += text;
    },
  });
  await until("the limit", () => said.endsWith("\n"));
  return { running, said };
}

async function failure(sandbox: Sandbox, command: string): Promise<CommandExitError> {
  try {
    await sandbox.commands.run(command);
  } catch (error) {
    if (error instanceof CommandExitError) return error;
    throw error;
  }
  throw new Error(`${command} did not fail`);
}

describe("limits", { timeout: 240_000 }, () => {
  before(makeSmallTemplate);

  it("ends a memory bomb with 'killed, out of memory'; agent, sandbox and the other commands live (RES-01, RES-02)", async () => {
    await using sandbox = await smallSandbox();
    const bystander = await sandbox.commands.run("exec sleep 1000", { background: true, timeoutMs: 0 });
    // Memory that a program touches itself, and memory that is filled by what it reads.
    for (const bomb of ["python3 -c 'x = bytearray(1 << 30)'", "exec tail /dev/zero"]) {
      const error = await failure(sandbox, bomb);
      assert.equal(error.exitCode, -1);
      assert.equal(error.error, "killed, out of memory");
      assert.match(error.stderr, /^killed, out of memory: (python3|tail) \(pid \d+\) held \d+ MiB$/m);
      assert.equal(await sandbox.isRunning(), true);
    }
    // Below a shell that goes on, or that ends of it.
    const goesOn = await sandbox.commands.run("tail /dev/zero; echo code $?");
    assert.equal(goesOn.stdout, "code 137\n");
    assert.match(goesOn.stderr, /^killed, out of memory: tail /m);
    const ends = await failure(sandbox, "tail /dev/zero; exit $?");
    assert.deepEqual([ends.exitCode, ends.error], [137, "killed, out of memory"]);
    // What is killed for other reasons is not said to be out of memory.
    const other = await failure(sandbox, "kill -9 $$");
    assert.deepEqual([other.exitCode, other.error, other.stderr], [-1, "signal: killed", ""]);

    assert.ok((await sandbox.commands.list()).some(({ pid }) => pid === bystander.pid));
    assert.equal(await bystander.kill(), true);
    const total = Number(await output(sandbox, "awk '/MemTotal/ { print $2 }' /proc/meminfo")) / 1024;
    assert.ok(total <= SMALL_MIB && total > SMALL_MIB * 0.9, `${total} MiB are shown inside`);
    const limit = readFileSync(cgroupFile(sandbox, "memory/memory.limit_in_bytes", "unified/memory.max"), "utf8");
    assert.equal(Number(limit), SMALL_MIB * MIB);
  });

  it("gives a sandbox of one processor one processor", async () => {
    await using sandbox = await smallSandbox();
    const loops = await sandbox.commands.run("for i in 1 2 3; do while :; do :; done & done; wait", {
      background: true,
      timeoutMs: 0,
    });
    await sleep(500);
    const before = [performance.now(), cpuSeconds(sandbox)] as const;
    await sleep(2_000);
    const share = (cpuSeconds(sandbox) - before[1]) / ((performance.now() - before[0]) / 1_000);
    await loops.kill();
    assert.ok(share < 1.15, `${share.toFixed(2)} processors`);
    // On a busy host it may get less.
    assert.ok(share > 0.3, `${share.toFixed(2)} processors`);
  });

  it("kills a program that forks until memory runs out as a whole; agent, sandbox and the other commands live (RES-01)", async () => {
    await using sandbox = await smallSandbox();
    const bystander = await sandbox.commands.run("exec sleep 1000", { background: true, timeoutMs: 0 });
    // One that forks as fast as it can may take the sandbox with it: docs/decisions/0002-pids-limit.md.
    const bomb = "import os, time\nfor _ in range(5000):\n  if os.fork() == 0: time.sleep(1000)\n  time.sleep(0.02)";
    const error = await failure(sandbox, `exec python3 -c '${bomb}'`);
    assert.equal(error.error, "killed, out of memory");
    assert.match(error.stderr, /^killed, out of memory: python3 \(pid \d+\) and \d+ others$/m);
    assert.equal(await output(sandbox, "pgrep -c python3 || true"), "0");
    assert.ok((await sandbox.commands.list()).some(({ pid }) => pid === bystander.pid));
  });

  it("lets a user have only so many tasks, and root look into it (RES-04)", async () => {
    await using sandbox = await smallSandbox();
    const bomb = `
import threading, time
made = 0
try:
    while made < 5000:
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
        made += 1
except RuntimeError:
    print(made, flush=True)
time.sleep(1000)`;
    const { running, said } = await tillItSays(sandbox, bomb);
    assert.ok(Number(said) >= 16 && Number(said) < 1_000, `${said.trim()} threads were made`);
    assert.equal((await sandbox.commands.run("id -u", { user: "root" })).stdout, "0\n");
    assert.equal(await running.kill(), true);
    await until("room for tasks", () =>
      output(sandbox, "echo again").then(
        (text) => text === "again",
        () => false,
      ),
    );
  });

  it("says no space left on device when the disk is full, and goes on (RES-05)", async () => {
    await using sandbox = await smallSandbox();
    const freeMib = Number(await output(sandbox, "df -m --output=avail / | tail -1"));
    const error = await failure(sandbox, `fallocate -l ${freeMib + 64}M big`);
    assert.match(error.stderr, /No space left on device/);
    await sandbox.commands.run("rm -f big");
    await sandbox.files.write("after", "still writable");
    assert.equal(await sandbox.files.read("after"), "still writable");
  });

  it("lets a program have only so many files open; they cost the host none, and all are listed (RES-07)", async () => {
    await using sandbox = await newSandbox();
    const filesBefore = openFiles(sandbox.sandboxId);
    const hoard = `
import os, resource, time
resource.setrlimit(resource.RLIMIT_NOFILE, (20000, 20000))
os.mkdir("held")
held = []
try:
    while True:
        held.append(open(f"held/{len(held)}", "w"))
except OSError as error:
    print(os.strerror(error.errno), len(held), flush=True)
time.sleep(1000)`;
    const { running, said } = await tillItSays(sandbox, hoard);
    const held = Number(/^Too many open files (19\d{3})\n$/.exec(said)?.[1]);
    assert.ok(held > 0, said);
    const listed = (await sandbox.files.list("held")).map(({ name }) => Number(name)).sort((a, b) => a - b);
    assert.deepEqual(
      listed.slice(0, held),
      Array.from({ length: held }, (_, at) => at),
    );
    // gVisor has made the one that could not be opened any more.
    assert.ok(listed.length <= held + 1, `${listed.length} are listed`);
    const filesMore = openFiles(sandbox.sandboxId) - filesBefore;
    assert.ok(filesMore < held / 20, `the host holds ${filesMore} files more for ${held} inside`);

    assert.equal(await output(sandbox, "rm -r held && mkdir held && ls held | wc -l"), "0");
    assert.equal(await running.kill(), true);
    assert.deepEqual(await sandbox.files.list("held"), []);
  });
});

describe("commands under load", { timeout: 240_000 }, () => {
  it("takes 64 MiB of input whole (PROC-10)", async () => {
    await using sandbox = await newSandbox();
    const piece = Buffer.alloc(2 * MIB, "0123456789abcdef");
    const hash = createHash("sha256");
    let said = "";
    const handle = await sandbox.commands.run("exec sha256sum", {
      background: true,
      stdin: true,
      timeoutMs: 0,
      onStdout: (text) => {
        said += text;
      },
    });
    for (let at = 0; at < 32; at += 1) {
      piece.writeUInt32LE(at, 0);
      hash.update(piece);
      await sandbox.commands.sendStdin(handle.pid, piece);
    }
    await sandbox.commands.closeStdin(handle.pid);
    await handle.wait();
    assert.equal(said, `${hash.digest("hex")}  -\n`);
  });

  it("loses nothing of 500 quick outputs (PROC-01)", async () => {
    await using sandbox = await newSandbox();
    const run = async (at: number): Promise<void> => {
      const { stdout, stderr } = await sandbox.commands.run(`printf 'out ${at}\\n%050d' ${at}; printf 'err ${at}' >&2`);
      assert.equal(stdout, `out ${at}\n${String(at).padStart(50, "0")}`);
      assert.equal(stderr, `err ${at}`);
    };
    let next = 0;
    const worker = async (): Promise<void> => {
      while (next < 500) await run(next++);
    };
    await Promise.all(Array.from({ length: 10 }, worker));
  });

  it("gives a large output whole to a reader slower than the program", async () => {
    await using sandbox = await newSandbox();
    let bytes = 0;
    const { exitCode } = await sandbox.commands.run("head -c 20000000 /dev/zero | tr '\\0' x", {
      timeoutMs: 0,
      async onStdout(text) {
        if (Math.floor(bytes / 4e6) !== Math.floor((bytes + text.length) / 4e6)) await sleep(150);
        bytes += text.length;
      },
    });
    assert.deepEqual([exitCode, bytes], [0, 20_000_000]);
  });
});
