import assert from "node:assert/strict";
import { after, beforeEach, describe, it } from "node:test";
import { setImmediate } from "node:timers/promises";
import { InputSender } from "./shell/input.ts";
import { DetachKeys } from "./shell/keys.ts";
import { aenv, type Result, TestIo } from "./testing/run.ts";
import { KEY, ServerDouble } from "./testing/server.ts";

let server: ServerDouble;
beforeEach(async () => {
  server ??= await ServerDouble.start();
});
after(async () => await server?.[Symbol.asyncDispose]());

function terminal(): TestIo {
  return new TestIo({ env: { AENV_URL: server.url, AENV_API_KEY: KEY, TERM: "xterm-test" }, terminal: true });
}

/** Each test has a sandbox, and an agent without shells. */
function sandbox(state: "running" | "paused" = "running"): string {
  server.agent.running.clear();
  return server.add(state).sandboxID;
}

function shell() {
  const found = [...server.agent.running.values()].find(({ tag }) => tag === "aenv-shell");
  assert.ok(found, "there is no shell");
  return found;
}

async function attached(argv: readonly string[]): Promise<{ io: TestIo; done: Promise<Result> }> {
  const io = terminal();
  const done = aenv(argv, io);
  await io.shows("stdout", "ready$ ");
  return { io, done };
}

/** Raw mode was on and is off, and nothing of the session listens any more. */
function assertRestored(io: TestIo): void {
  assert.equal(io.rawModes[0], true);
  assert.equal(io.rawModes.at(-1), false);
  for (const name of ["SIGINT", "SIGTERM", "SIGHUP", "SIGWINCH", "SIGCONT"] as const) {
    assert.equal(io.listeners(name), 0, name);
  }
}

describe("shell", () => {
  it("starts one with the terminal's size and kind, and ends with its exit code", async () => {
    server.agent.running.clear();
    const { io, done } = await attached(["start", "base"]);
    const { config, sizes } = shell();
    assert.deepEqual([config.cmd, config.args, config.envs.TERM], ["/bin/bash", ["-i", "-l"], "xterm-test"]);
    assert.deepEqual(sizes, ["100x30"]);
    io.stdin.write("exit 3\r");
    const result = await done;
    assert.equal(result.code, 3);
    assertRestored(io);
    const id = server.seen.find(({ path }) => path.endsWith("/refreshes"))?.path.split("/")[2];
    assert.match(result.stderr, new RegExp(`runs until .*\\n  aenv cn ${id} .*\\n  aenv rm ${id} `));
    assert.equal(server.sandboxes.has(String(id)), true);
  });

  it("falls back to /bin/sh where there is no bash", async () => {
    const id = sandbox();
    server.agent.missing.add("/bin/bash");
    const { io, done } = await attached(["cn", id]);
    server.agent.missing.clear();
    assert.equal(shell().config.cmd, "/bin/sh");
    io.stdin.write("exit 0\r");
    assert.equal((await done).code, 0);
  });

  it("keeps the sandbox alive from the first moment, typing or not", async () => {
    const id = sandbox();
    const { io, done } = await attached(["cn", id, "--timeout", "900"]);
    const refresh = () => server.seen.find(({ path }) => path === `/sandboxes/${id}/refreshes`);
    while (refresh() === undefined) await setImmediate();
    assert.deepEqual(refresh()?.body, { duration: 900 });
    io.stdin.write("exit 0\r");
    await done;
  });

  it("PROC-17: keeps the order of what is typed and follows the window's size", async () => {
    const id = sandbox();
    const { io, done } = await attached(["cn", id]);
    const typed = Array.from({ length: 500 }, (_, at) => String.fromCharCode(97 + (at % 26)));
    for (const key of typed) io.stdin.write(key);
    Object.assign(io.stdout, { columns: 200, rows: 50 });
    io.signal("SIGWINCH");
    const process = shell();
    while (process.typed.length < typed.length || process.sizes.at(-1) !== "200x50") await setImmediate();
    assert.equal(process.typed, typed.join(""));
    io.stdin.write("\rexit 0\r");
    await done;
  });

  it("comes back to the shell that is there, and has it draw anew", async () => {
    const id = sandbox();
    const first = await attached(["cn", id]);
    const { pid } = shell();
    first.io.stdin.write("abc\r");
    await first.io.shows("stdout", "abc\r\n");
    first.io.stdin.write("~.");
    const left = await first.done;
    assert.equal(left.code, 0);
    assert.match(left.stderr, /Detached; the shell in i\d+ goes on\./);
    assertRestored(first.io);

    const again = terminal();
    const done = aenv(["connect", id], again);
    const process = shell();
    while (process.sizes.length < 3) await setImmediate();
    assert.deepEqual([process.pid, process.sizes.slice(1)], [pid, ["100x29", "100x30"]]);
    server.agent.say("still here");
    await again.shows("stdout", "still here");
    again.stdin.write("exit 0\r");
    assert.equal((await done).code, 0);
    assert.match(process.typed, /^abc\rexit 0/);
  });

  it("resumes a paused sandbox first and says so", async () => {
    const id = sandbox("paused");
    const { io, done } = await attached(["cn", id]);
    assert.match(io.text("stderr"), new RegExp(`Resumed ${id}`));
    io.stdin.write("exit 0\r");
    await done;
  });

  it("takes a broken connection up again where it was, with nothing lost and nothing twice", async () => {
    const id = sandbox();
    const { io, done } = await attached(["cn", id]);
    const { pid } = shell();
    server.agent.cut();
    server.agent.say("while it was broken");
    await io.shows("stdout", "while it was broken");
    server.agent.say(", after it");
    await io.shows("stdout", "after it");
    assert.equal(io.text("stdout"), "ready$ while it was broken, after it");
    assert.deepEqual([shell().pid, shell().sizes], [pid, ["100x30"]]);
    io.stdin.write("exit 4\r");
    assert.equal((await done).code, 4);
  });

  it("takes it up again with the same shell that draws anew, where the agent keeps no output", async () => {
    const id = sandbox();
    const { io, done } = await attached(["cn", id]);
    const { pid } = shell();
    server.agent.keeps = false;
    server.agent.cut();
    const process = shell();
    while (process.sizes.length < 3) await setImmediate();
    server.agent.keeps = true;
    server.agent.say("after the break");
    await io.shows("stdout", "after the break");
    assert.equal(shell().pid, pid);
    io.stdin.write("exit 4\r");
    assert.equal((await done).code, 4);
  });

  it("LIFE-14: says that the sandbox was paused or deleted meanwhile, code 130", async () => {
    const id = sandbox();
    const pausing = await attached(["cn", id]);
    const record = server.sandboxes.get(id);
    assert.ok(record);
    record.state = "paused";
    server.agent.cut();
    const paused = await pausing.done;
    assert.equal(paused.code, 130);
    assert.match(paused.stderr, /was paused\. `aenv cn i\d+` resumes it/);
    assertRestored(pausing.io);

    const other = sandbox();
    const deleting = await attached(["cn", other]);
    server.sandboxes.delete(other);
    server.agent.cut();
    const gone = await deleting.done;
    assert.equal(gone.code, 130);
    assert.match(gone.stderr, /is gone/);
    assertRestored(deleting.io);
  });

  it("puts the terminal back on signals and lets the shell go on", async () => {
    for (const [name, code] of [
      ["SIGTERM", 143],
      ["SIGHUP", 129],
      ["SIGINT", 130],
    ] as const) {
      const { io, done } = await attached(["cn", sandbox()]);
      io.signal(name);
      assert.equal((await done).code, code);
      assertRestored(io);
      assert.ok(shell());
    }
  });

  it("CLI-08: deletes the sandbox it started when the shell cannot be reached", async () => {
    server.agent.running.clear();
    server.agent.missing.add("/bin/bash").add("/bin/sh");
    const io = terminal();
    const result = await aenv(["start", "base"], io);
    server.agent.missing.clear();
    assert.equal(result.code, 3);
    assert.match(result.stderr, /has no shell: neither \/bin\/bash nor \/bin\/sh/);
    const id = /Started (i\d+)/.exec(result.stderr)?.[1] ?? "";
    assert.equal(server.sandboxes.has(id), false);
    assert.match(result.stderr, /Deleted i\d+ again/);
    assert.deepEqual(io.rawModes, []);
  });
});

describe("DetachKeys", () => {
  const take = (keys: DetachKeys, text: string): [string, boolean] => {
    const { pass, detach } = keys.take(Buffer.from(text));
    return [pass.toString(), detach];
  };

  it("finds ~. at the start of a line only, over any cut", () => {
    assert.deepEqual(take(new DetachKeys({ ctrlPQ: true }), "~.x"), ["", true]);
    assert.deepEqual(take(new DetachKeys({ ctrlPQ: true }), "a~.\r~.x"), ["a~.\r", true]);
    const cut = new DetachKeys({ ctrlPQ: true });
    assert.deepEqual(take(cut, "ls\r~"), ["ls\r", false]);
    assert.deepEqual(take(cut, "."), ["", true]);
  });

  it("passes every other tilde on", () => {
    assert.deepEqual(take(new DetachKeys({ ctrlPQ: true }), "~/bin\r"), ["~/bin\r", false]);
    assert.deepEqual(take(new DetachKeys({ ctrlPQ: true }), "~~.\r"), ["~.\r", false]);
    assert.deepEqual(take(new DetachKeys({ ctrlPQ: true }), "~\r~."), ["~\r", true]);
  });
});

describe("DetachKeys of docker", () => {
  it("finds Ctrl-P Ctrl-Q over any cut, and passes every other Ctrl-P on", () => {
    const keys = new DetachKeys({ ctrlPQ: true });
    const take = (text: string): [string, boolean] => {
      const { pass, detach } = keys.take(Buffer.from(text));
      return [pass.toString(), detach];
    };
    assert.deepEqual(take("a\x10"), ["a", false]);
    assert.deepEqual([keys.holdsCtrlP, take("b\x10\x10")], [true, ["\x10b\x10", false]]);
    assert.deepEqual(take("\x11x"), ["", true]);
    assert.deepEqual(take("\x11\x10"), ["\x11", false]);
    assert.deepEqual([keys.release().toString(), keys.holdsCtrlP, keys.release().length], ["\x10", false, 0]);
    const without = new DetachKeys({ ctrlPQ: false });
    assert.equal(without.take(Buffer.from("\x10\x11")).pass.toString(), "\x10\x11");
  });
});

describe("InputSender", () => {
  it("sends one piece at a time, joins what waits, and asks for a pause when much waits", async () => {
    const sent: number[] = [];
    const pressures: boolean[] = [];
    const gate = Promise.withResolvers<void>();
    const sender = new InputSender(
      async (bytes) => {
        sent.push(bytes.length);
        await gate.promise;
      },
      (high) => pressures.push(high),
    );
    for (let at = 0; at < 5; at += 1) sender.push(Buffer.alloc(100_000));
    assert.deepEqual([sent, pressures], [[100_000], [true]]);
    gate.resolve();
    await sender.idle();
    assert.deepEqual(
      [sent, pressures],
      [
        [100_000, 400_000],
        [true, false],
      ],
    );
  });
});
