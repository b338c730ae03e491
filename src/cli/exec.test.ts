import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { Writable } from "node:stream";
import { after, beforeEach, describe, it } from "node:test";
import { setImmediate } from "node:timers/promises";
import { Code, ConnectError } from "@connectrpc/connect";
import type { SignalName } from "./io.ts";
import { aenv, type Result, TestIo } from "./testing/run.ts";
import { KEY, type SandboxRecord, ServerDouble } from "./testing/server.ts";

let server: ServerDouble;
let id: string;
beforeEach(async () => {
  if (server !== undefined) return;
  server = await ServerDouble.start();
  id = server.add().sandboxID;
});
after(async () => await server?.[Symbol.asyncDispose]());

function open(): TestIo {
  return new TestIo({ env: { AENV_URL: server.url, AENV_API_KEY: KEY } });
}

async function exec(words: readonly string[], stdin: Uint8Array | string = ""): Promise<Result> {
  const io = open();
  io.stdin.end(stdin);
  return await aenv(["exec", id, ...words], io);
}

describe("exec", () => {
  it("CLI-02: hands on the remote code, 128+n for signals, and 125 for its own failures", async () => {
    for (const code of [0, 1, 42, 255]) assert.equal((await exec(["sh", "-c", `exit ${code}`])).code, code);
    assert.equal((await exec(["sh", "-c", "kill -9 $$"])).code, 137);
    assert.equal((await exec(["sh", "-c", "kill -15 $$"])).code, 143);
    for (const [name, code] of [
      ["SEGV", 139],
      ["XCPU", 152],
      ["SYS", 159],
    ] as const) {
      assert.equal((await exec(["sh", "-c", `kill -${name} $$`])).code, code);
    }
    assert.equal((await exec(["no-such-program"])).code, 127);
    assert.equal((await exec(["/etc/passwd"])).code, 126);
    const unreachable = await aenv(["exec", "--url", "http://127.0.0.1:1", id, "true"], open());
    const badKey = await aenv(["exec", "--key", "bad", id, "true"], open());
    const unknown = await aenv(["exec", "inobody", "true"], open());
    const paused = await aenv(["exec", server.add("paused").sandboxID, "true"], open());
    const usage = await aenv(["exec", id], open());
    for (const result of [unreachable, badKey, unknown, paused, usage]) {
      assert.equal(result.code, 125);
      assert.match(result.stderr, /^aenv: /);
    }
    assert.match(paused.stderr, /is paused\nhint: run `aenv resume /);
  });

  it("leaves every word after the id to the command, and drops one leading --", async () => {
    const echo = ["printf", "[%s]"];
    assert.equal(
      (await exec([...echo, "--json", "-e", "A=1", "--", "--help"])).stdout,
      "[--json][-e][A=1][--][--help]",
    );
    assert.equal((await exec(["--", ...echo, "a b", ""])).stdout, "[a b][]");
  });

  it("hands over environment, folder, user and the sandbox's token", async () => {
    const io = open();
    const argv = ["exec", "-e", "A=x=\ny", "-w", "/usr", "-u", "root", id, "sh", "-c", 'printf "%s|%s" "$A" "$PWD"'];
    assert.equal((await aenv(argv, io)).stdout, "x=\ny|/usr");
    const headers = server.agent.headers.at(-1);
    assert.equal(headers?.get("authorization"), `Basic ${Buffer.from("root:").toString("base64")}`);
    assert.equal(headers?.get("x-access-token"), `token-${id}`);
    assert.equal(headers?.get("x-api-key"), null);
  });

  it("PROC-10, CLI-04: carries 10 MB of any bytes in and out", async () => {
    const bytes = randomBytes(10 << 20);
    const result = await exec(["cat"], bytes);
    assert.equal(result.code, 0, result.stderr);
    assert.equal(sha(result.stdoutBytes), sha(bytes));
  });

  it("keeps the two output streams apart and the last byte of each", async () => {
    const result = await exec(["sh", "-c", "printf out; printf err >&2"]);
    assert.deepEqual([result.stdout, result.stderr], ["out", "err"]);
  });

  it("ends with the command although its input stays open", async () => {
    const io = open();
    const result = await aenv(["exec", id, "echo", "done"], io);
    assert.deepEqual([result.code, result.stdout], [0, "done\n"]);
    assert.equal(io.stdin.destroyed, false);
    assert.equal(io.listeners("SIGINT"), 0);
  });

  it("ends with a command that stops reading in the middle of its input", async () => {
    const result = await exec(["head", "-c", "1"], Buffer.alloc(4 << 20, "x"));
    assert.deepEqual([result.code, result.stdout], [0, "x"]);
  });

  it("closes the command's input at end of file, and gives it none from a terminal or with -n", async () => {
    assert.equal((await exec(["wc", "-c"], "12345")).stdout.trim(), "5");
    const nothing = open();
    assert.equal((await aenv(["exec", "-n", id, "wc", "-c"], nothing)).stdout.trim(), "0");
    const terminal = new TestIo({ env: { AENV_URL: server.url, AENV_API_KEY: KEY }, terminal: true });
    assert.equal((await aenv(["exec", id, "wc", "-c"], terminal)).stdout.trim(), "0");
    assert.deepEqual(terminal.rawModes, []);
  });

  it("PROC-10: never reports success for a command that got half of its input", async () => {
    server.agent.inputError = new ConnectError("not now", Code.Unavailable);
    const halved = await exec(["sh", "-c", "cat >/dev/null; exit 0"], "half");
    server.agent.inputError = new ConnectError("does not read its input any more", Code.FailedPrecondition);
    const satisfied = await exec(["sh", "-c", "exit 7"], "more than it wants");
    server.agent.inputError = undefined;
    assert.deepEqual([halved.code, halved.stderr], [125, "aenv: not now\n"]);
    assert.equal(satisfied.code, 7);
  });

  it("takes a broken connection up where it broke, nothing twice and nothing left out", async () => {
    const io = open();
    const running = aenv(["exec", id, "sh", "-c", "echo 1; read word; echo $word; exit 3"], io);
    await io.shows("stdout", "1\n");
    const [process] = server.agent.running.values();
    const [first] = process?.watchers ?? [];
    server.agent.cut();
    while ([...(process?.watchers ?? [])].every((watcher) => watcher === first)) await setImmediate();
    io.stdin.write("2\n");
    assert.deepEqual([(await running).code, io.text("stdout")], [3, "1\n2\n"]);
  });

  it("PROC-20, LIFE-14: what cannot be taken up is 125, never the remote's success, and says what became of it", async () => {
    const losing = async (lose: (sandbox: SandboxRecord) => void): Promise<Result> => {
      const io = open();
      const sandbox = server.add();
      const running = aenv(["exec", sandbox.sandboxID, "sh", "-c", "echo up; exec sleep 60"], io);
      await io.shows("stdout", "up\n");
      lose(sandbox);
      server.agent.cut();
      return await running;
    };
    const paused = await losing((sandbox) => {
      sandbox.state = "paused";
    });
    const gone = await losing(({ sandboxID }) => server.sandboxes.delete(sandboxID));
    const forgotten = await losing(() => {
      for (const process of server.agent.running.values()) {
        process.kept = Buffer.from("up\nmore");
        process.forgotten = 5;
      }
    });
    const ended = await losing(() => {
      server.agent.cut();
      for (const { child } of server.agent.running.values()) child?.kill("SIGKILL");
      server.agent.running.clear();
    });
    for (const { code } of [paused, gone, ended, forgotten]) assert.equal(code, 125);
    assert.match(
      paused.stderr,
      /^aenv: \S+ was paused, .*`aenv resume \S+`.*\nhint: `aenv attach \S+ \d+` comes back to it\n$/,
    );
    assert.match(gone.stderr, /^aenv: \S+ is gone: deleted, or its time was over\n$/);
    assert.match(ended.stderr, /^aenv: lost the program in \S+: it ended while the connection was down\n/);
    assert.match(forgotten.stderr, /2 bytes of its output are not kept any more; it goes on\nhint: `aenv attach /);
  });

  it("a reader that stands still keeps nobody from ending it", async () => {
    const stuck = async (argv: readonly string[], ...signals: SignalName[]): Promise<[number, string]> => {
      const full = Promise.withResolvers<void>();
      const env = { AENV_URL: server.url, AENV_API_KEY: KEY };
      const io = new TestIo({ env, stdout: new Writable({ write: () => full.resolve() }) });
      const running = aenv(argv, io);
      await full.promise;
      for (const signal of signals) io.signal(signal);
      const { code, stderr } = await running;
      return [code, stderr];
    };
    const why = "aenv: interrupted; what the command said is not being read\n";
    assert.deepEqual(await stuck(["exec", id, "cat", "/dev/zero"], "SIGINT", "SIGINT"), [130, why]);
    assert.deepEqual(await stuck(["exec", id, "cat", "/dev/zero"], "SIGTERM"), [143, why]);
    const before = server.sandboxes.size;
    assert.deepEqual(await stuck(["run", "base", "--", "cat", "/dev/zero"], "SIGQUIT"), [131, why]);
    assert.equal(server.sandboxes.size, before, "run leaves no sandbox");
    const { sandboxID } = server.add();
    server.logs.set(sandboxID, [{ timestamp: new Date().toISOString(), level: "info", message: "said", fields: {} }]);
    assert.equal((await stuck(["logs", "-f", sandboxID], "SIGINT", "SIGINT"))[0], 130);
  });

  it("a full disk behind its output is no defect of ours", async () => {
    const full = Object.assign(new Error("ENOSPC: no space left on device, write"), { code: "ENOSPC" });
    for (const [expected, ...argv] of [
      [1, "ls"],
      [125, "exec", id, "echo", "hi"],
    ] as const) {
      const stdout = new Writable({ write: (_chunk, _encoding, done) => done(full) }).on("error", () => {});
      const io = new TestIo({ env: { AENV_URL: server.url, AENV_API_KEY: KEY }, stdout });
      const { code, stderr } = await aenv(argv, io);
      assert.deepEqual([code, stderr], [expected, "aenv: cannot write the output: no space left\n"]);
    }
  });

  it("asks the command to end on Ctrl-C and kills it on the second", async () => {
    const io = open();
    const polite = aenv(
      ["exec", id, "sh", "-c", "trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 0.05; done"],
      io,
    );
    await io.shows("stdout", "up");
    io.signal("SIGINT");
    assert.deepEqual([(await polite).code, io.text("stdout")], [5, "up\nbye\n"]);

    const stubborn = open();
    const killed = aenv(["exec", id, "sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done"], stubborn);
    await stubborn.shows("stdout", "up");
    stubborn.signal("SIGINT");
    stubborn.signal("SIGINT");
    assert.equal((await killed).code, 130);
  });

  it("stops the command and stays quiet when its own reader leaves", async () => {
    const io = open();
    io.stdout.on("error", () => {});
    io.stdout.destroy();
    const result = await aenv(["exec", id, "yes"], io);
    assert.deepEqual([result.code, result.stderr], [141, ""]);
    while ([...server.agent.running.values()].some(({ config }) => config.cmd === "yes")) await setImmediate();
  });
});

function sha(bytes: Uint8Array): string {
  return createHash("sha256").update(bytes).digest("hex");
}
