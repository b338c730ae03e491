import assert from "node:assert/strict";
import { describe, it } from "node:test";
import {
  AuthenticationError,
  CommandExitError,
  FileNotFoundError,
  type McpServer,
  NotFoundError,
  Sandbox,
  TimeoutError,
} from "e2b";
import { newSandbox, output, useServer } from "./sdk.ts";
import { sharedServer, until } from "./server.ts";

describe("the stock JavaScript SDK", { timeout: 300_000 }, () => {
  it("creates, finds, prolongs and kills a sandbox", async () => {
    useServer(await sharedServer());
    const sandbox = await Sandbox.create("base", { timeoutMs: 60_000, metadata: { "k y": "v&1" }, envs: { A: "1" } });
    assert.match(sandbox.sandboxId, /^i[a-z0-9]{19}$/);
    assert.equal(await sandbox.isRunning(), true);
    const info = await sandbox.getInfo();
    assert.equal(info.state, "running");
    assert.deepEqual(info.metadata, { "k y": "v&1" });
    assert.ok(Math.abs(info.endAt.getTime() - Date.now() - 60_000) < 3_000);

    const listed = await Sandbox.list({ query: { metadata: { "k y": "v&1" } } }).nextItems();
    assert.deepEqual(
      listed.map((one) => one.sandboxId),
      [sandbox.sandboxId],
    );
    await sandbox.setTimeout(600_000);
    assert.ok((await sandbox.getInfo()).endAt.getTime() - Date.now() > 590_000);

    assert.equal(await sandbox.kill(), true);
    assert.equal(await sandbox.isRunning(), false);
    assert.equal(await Sandbox.kill(sandbox.sandboxId), false);
    await assert.rejects(Sandbox.connect(sandbox.sandboxId), NotFoundError);
  });

  it("leaves no sandbox where the MCP gateway does not start", async () => {
    useServer(await sharedServer());
    const metadata = { mcp: "no gateway" };
    await assert.rejects(
      Sandbox.create("base", { metadata, mcp: { time: {} } as McpServer }),
      /^SandboxError: Failed to start MCP gateway/,
    );
    assert.deepEqual(await Sandbox.list({ query: { metadata } }).nextItems(), []);
  });

  it("runs commands: output, exit codes, env, cwd, user", async () => {
    await using sandbox = await newSandbox({ envs: { FROM_CREATE: "yes" } });
    const both = await sandbox.commands.run("echo out; echo err >&2");
    assert.deepEqual([both.stdout, both.stderr, both.exitCode], ["out\n", "err\n", 0]);
    await assert.rejects(
      sandbox.commands.run("exit 7"),
      (error) => error instanceof CommandExitError && error.exitCode === 7,
    );
    assert.equal((await sandbox.commands.run("echo $FROM_CREATE $OWN", { envs: { OWN: "né" } })).stdout, "yes né\n");
    assert.equal((await sandbox.commands.run("pwd", { cwd: "/usr/lib" })).stdout, "/usr/lib\n");
    assert.equal(await output(sandbox, "pwd; whoami"), "/home/user\nuser");
    assert.equal((await sandbox.commands.run("whoami", { user: "root" })).stdout, "root\n");
    assert.equal(await output(sandbox, "sudo -n id -u"), "0");
  });

  it("runs background commands: stream, list, stdin, kill, reconnect", async () => {
    await using sandbox = await newSandbox();
    let seen = "";
    const handle = await sandbox.commands.run("cat", {
      background: true,
      stdin: true,
      onStdout: (text) => {
        seen += text;
      },
    });
    await sandbox.commands.sendStdin(handle.pid, "hello\n");
    await until("the echo", () => seen === "hello\n");
    assert.ok((await sandbox.commands.list()).some((one) => one.pid === handle.pid));
    let again = "";
    const other = await sandbox.commands.connect(handle.pid, {
      onStdout: (text) => {
        again += text;
      },
    });
    await sandbox.commands.sendStdin(handle.pid, "more\n");
    await until("both echoes on the second connection", () => again === "hello\nmore\n");
    assert.equal(await handle.kill(), true);
    await assert.rejects(handle.wait(), CommandExitError);
    await assert.rejects(other.wait(), CommandExitError);
    assert.equal(await sandbox.commands.kill(handle.pid), false);
  });

  it("ends a command at its timeout, with all it started", async () => {
    await using sandbox = await newSandbox();
    await assert.rejects(sandbox.commands.run("sleep 4321 & sleep 4321", { timeoutMs: 1_000 }), TimeoutError);
    await until("the sleeps' end", async () => (await output(sandbox, "pgrep -fc '[s]leep 4321' || true")) === "0");
  });

  it("reads, writes and lists files", async () => {
    await using sandbox = await newSandbox();
    const written = await sandbox.files.write("sub/a.txt", "text ✓");
    assert.deepEqual([written.name, written.path, written.type], ["a.txt", "/home/user/sub/a.txt", "file"]);
    assert.equal(await sandbox.files.read("sub/a.txt"), "text ✓");
    const bytes = new Uint8Array(300_000).map((_, at) => at % 251);
    await sandbox.files.write("bin", bytes.buffer);
    assert.deepEqual(await sandbox.files.read("bin", { format: "bytes" }), bytes);
    const names = (await sandbox.files.list(".")).map((entry) => entry.name);
    assert.ok(names.includes("bin") && names.includes("sub"));
    assert.equal(await sandbox.files.makeDir("sub"), false);
    assert.equal(await sandbox.files.exists("nothing"), false);
    await assert.rejects(sandbox.files.read("nothing"), FileNotFoundError);
    await sandbox.files.rename("bin", "moved");
    await sandbox.files.remove("moved");
    assert.equal(await sandbox.files.exists("moved"), false);
  });

  it("pauses and connects: processes and files go on", async () => {
    await using sandbox = await newSandbox();
    await sandbox.commands.run("n=0; while :; do n=$((n+1)); echo $n > next; mv next count; sleep 0.05; done", {
      background: true,
    });
    await until("the counter", () => sandbox.files.exists("count"));
    assert.equal(await sandbox.pause(), true);
    assert.equal(await sandbox.pause(), false);
    assert.equal((await sandbox.getInfo()).state, "paused");
    assert.equal(await sandbox.isRunning(), false);
    await sandbox.connect();
    const before = Number(await sandbox.files.read("count"));
    await until("counting on", async () => Number(await sandbox.files.read("count")) > before);
    assert.equal((await sandbox.getInfo()).state, "running");
  });

  it("forks a running sandbox into several with the same state and own identities", async () => {
    await using sandbox = await newSandbox({ metadata: { branch: "root" } });
    await sandbox.files.write("state", "shared");
    const results = await sandbox.fork({ count: 3 });
    const forks = results.map((result) => {
      assert.ok(result instanceof Sandbox, String(result));
      return result;
    });
    try {
      assert.equal(new Set([sandbox.sandboxId, ...forks.map((fork) => fork.sandboxId)]).size, 4);
      for (const [at, fork] of forks.entries()) {
        assert.equal(await fork.files.read("state"), "shared");
        await fork.files.write("state", `own ${at}`);
        assert.equal(await output(fork, "echo $E2B_SANDBOX_ID; hostname"), `${fork.sandboxId}\n${fork.sandboxId}`);
      }
      assert.equal(await sandbox.files.read("state"), "shared");
      assert.deepEqual(await Promise.all(forks.map((fork) => fork.files.read("state"))), ["own 0", "own 1", "own 2"]);
    } finally {
      await Promise.all(forks.map((fork) => fork.kill()));
    }
  });

  it("gives E2B's errors for a wrong key and an unknown template", async () => {
    useServer(await sharedServer());
    await assert.rejects(Sandbox.create("base", { apiKey: "wrong" }), AuthenticationError);
    await assert.rejects(Sandbox.create("no-such-template"), /not found/);
  });

  it("lets nobody in without the sandbox's own token (SNAP-05)", async () => {
    await using one = await newSandbox();
    await using two = await newSandbox();
    const server = await sharedServer();
    const token = (await (
      await fetch(`${server.url}/sandboxes/${two.sandboxId}`, { headers: { "X-API-Key": server.apiKey } })
    ).json()) as {
      envdAccessToken: string;
    };
    const ask = (headers: Record<string, string>): Promise<Response> =>
      fetch(`${server.url}/files?path=/etc/hostname`, {
        headers: { "E2b-Sandbox-Id": one.sandboxId, "E2b-Sandbox-Port": "49983", ...headers },
      });
    assert.equal((await ask({})).status, 401);
    assert.equal((await ask({ "X-Access-Token": token.envdAccessToken })).status, 401);
  });
});
