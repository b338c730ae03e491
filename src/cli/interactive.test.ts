import assert from "node:assert/strict";
import { after, beforeEach, describe, it } from "node:test";
import { setImmediate } from "node:timers/promises";
import { NO_TERMINAL, onTerminal } from "./testing/on-terminal.ts";
import { aenv, type Result, TestIo } from "./testing/run.ts";
import { KEY, ServerDouble } from "./testing/server.ts";

let server: ServerDouble;
let id: string;
beforeEach(async () => {
  server ??= await ServerDouble.start();
  server.agent.running.clear();
  server.sandboxes.clear();
  id = server.add().sandboxID;
});
after(async () => await server?.[Symbol.asyncDispose]());

function open(options: { terminal?: boolean } = {}): TestIo {
  return new TestIo({ env: { AENV_URL: server.url, AENV_API_KEY: KEY, TERM: "xterm-test" }, ...options });
}

function only() {
  const [process, ...more] = server.agent.running.values();
  assert.ok(process && more.length === 0);
  return process;
}

async function typing(argv: readonly string[]): Promise<{ io: TestIo; done: Promise<Result> }> {
  const io = open({ terminal: true });
  const done = aenv(argv, io);
  await io.shows("stdout", "ready$ ");
  return { io, done };
}

describe("exec -it", () => {
  it("puts the terminal on the command, with its size and kind, and has its exit code", async () => {
    const { io, done } = await typing(["exec", "-it", "-e", "A=1", "-w", "/usr", id, "python3", "-q"]);
    const { config, sizes } = only();
    assert.deepEqual([config.cmd, config.args], ["python3", ["-q"]]);
    assert.deepEqual({ ...config.envs }, { TERM: "xterm-test", A: "1" });
    Object.assign(io.stdout, { columns: 200, rows: 50 });
    io.signal("SIGWINCH");
    while (sizes.at(-1) !== "200x50") await setImmediate();
    io.stdin.write("exit 9\r");
    const result = await done;
    assert.deepEqual([result.code, result.stderr], [9, ""]);
    assert.deepEqual([io.rawModes.at(0), io.rawModes.at(-1)], [true, false]);
    assert.ok(
      server.seen.some(({ path }) => path === `/sandboxes/${id}/refreshes`),
      "prolonged while attended",
    );
  });

  for (const [name, keys] of [
    ["Ctrl-P Ctrl-Q", "\x10\x11"],
    ["Enter ~ .", "\r~."],
  ] as const) {
    it(`leaves by ${name} and comes back by attach, to the same process`, async () => {
      const first = await typing(["exec", "-it", id, "bash"]);
      const { pid } = only();
      first.io.stdin.write(`abc${keys}`);
      const left = await first.done;
      assert.equal(left.code, 0);
      assert.match(
        left.stderr,
        new RegExp(`Detached; process ${pid} in ${id} goes on\\.\\n +aenv attach ${id} ${pid} `),
      );
      assert.equal(first.io.rawModes.at(-1), false);

      const again = open({ terminal: true });
      const done = aenv(["attach", id, String(pid)], again);
      while (only().sizes.length < 4) await setImmediate();
      server.agent.say("still here");
      await again.shows("stdout", "still here");
      again.stdin.write("\rexit 4\r");
      assert.equal((await done).code, 4);
    });
  }

  it("what was typed before the keys that leave arrives, also where it comes in one piece and the sandbox is slow", async () => {
    const { io, done } = await typing(["exec", "-it", id, "bash"]);
    const process = only();
    server.agent.inputDelayMs = 50;
    io.stdin.write("echo a\r");
    io.stdin.write("echo b\r~.");
    assert.equal((await done).code, 0);
    server.agent.inputDelayMs = 0;
    assert.equal(process.typed, "echo a\recho b\r");
  });

  it("a lone Ctrl-P reaches the command although no key follows", async () => {
    const { io, done } = await typing(["exec", "-it", id, "bash"]);
    const process = only();
    io.stdin.write("\x10");
    while (process.typed !== "\x10") await setImmediate();
    io.stdin.write("\rexit 0\r");
    await done;
  });

  it("-i hands a terminal's lines on, -t alone gives a terminal and no input", async () => {
    const lines = open({ terminal: true });
    const counted = aenv(["exec", "-i", id, "wc", "-c"], lines);
    lines.stdin.end("12345");
    assert.equal((await counted).stdout.trim(), "5");
    assert.deepEqual(lines.rawModes, []);

    const shown = open();
    const done = aenv(["exec", "-t", id, "top"], shown);
    await shown.shows("stdout", "ready$ ");
    assert.deepEqual(only().sizes, ["80x24"]);
    shown.stdin.write("not for the command\r");
    const { typed } = only();
    server.agent.end(7);
    assert.deepEqual([(await done).code, typed, shown.rawModes], [7, "", []]);
  });

  it("refuses what cannot be, before anything is started, with 125", async () => {
    for (const argv of [
      ["exec", "-it", id, "bash"],
      ["exec", "-in", id, "cat"],
      ["exec", id, ""],
    ]) {
      const result = await aenv(argv, open());
      assert.equal(result.code, 125);
      assert.match(result.stderr, /^aenv: .+\nhint: .+\n$/);
    }
    server.agent.missing.add("nothing");
    const missing = await aenv(["exec", "-it", id, "nothing"], open({ terminal: true }));
    server.agent.missing.clear();
    assert.equal(missing.code, 127);
    assert.match(missing.stderr, /^aenv: cannot run nothing: /);
  });

  it("LIFE-14: says that the sandbox was paused or has gone, code 130", async () => {
    const pausing = await typing(["exec", "-it", id, "bash"]);
    Object.assign(server.sandboxes.get(id) ?? {}, { state: "paused" });
    server.agent.cut();
    const paused = await pausing.done;
    assert.equal(paused.code, 130);
    assert.match(paused.stderr, /was paused, with the program in it; `aenv resume i\d+`/);
    assert.equal(pausing.io.rawModes.at(-1), false);
  });
});

describe("ps and attach", () => {
  it("lists what can be attached to", async () => {
    const waiting = open();
    const done = aenv(["exec", id, "sh", "-c", "echo 'a b'; read x; exit 5"], waiting);
    await waiting.shows("stdout", "a b");
    const { pid } = only();
    const table = await aenv(["ps", id], open());
    assert.equal(table.stdout, ` PID  TAG  COMMAND\n${pid}  -    sh -c 'echo '\\''a b'\\''; read x; exit 5'\n`);
    const [first] = JSON.parse((await aenv(["ps", id, "--json"], open())).stdout);
    assert.deepEqual([first.pid, first.config.cmd], [pid, "sh"]);

    const watching = open();
    const watched = aenv(["attach", id], watching);
    while (only().watchers.size < 2) await setImmediate();
    waiting.stdin.end("go\n");
    assert.deepEqual([(await done).code, (await watched).code], [5, 5]);
  });

  it("shows the output of a process without a terminal; Ctrl-C leaves it running", async () => {
    const starting = open();
    const started = aenv(["exec", id, "sh", "-c", "while :; do echo tick; echo tock >&2; sleep 0.02; done"], starting);
    await starting.shows("stdout", "tick");
    const process = only();
    const io = open({ terminal: true });
    const done = aenv(["attach", id, String(process.pid)], io);
    await io.shows("stdout", "tick");
    await io.shows("stderr", "tock");
    io.signal("SIGINT");
    const left = await done;
    assert.equal(left.code, 130);
    assert.match(left.stderr, new RegExp(`interrupted; process ${process.pid} goes on`));
    assert.deepEqual(io.rawModes, []);
    assert.ok(server.agent.running.has(process.pid));
    starting.signal("SIGINT");
    await started;
  });

  it("says what there is when it cannot choose or find", async () => {
    const none = await aenv(["attach", id], open());
    assert.deepEqual([none.code, none.stderr.includes(`\`aenv cn ${id}\``)], [125, true]);
    const missing = await aenv(["attach", id, "77"], open());
    assert.equal(missing.code, 125);
    assert.match(missing.stderr, /there is no process 77 .*\nhint: `aenv ps /);
    const words = await aenv(["attach", id, "bash"], open());
    assert.match(words.stderr, /is no process id/);
    const one = await typing(["exec", "-it", id, "bash"]);
    const two = await typing(["exec", "-it", id, "bash"]);
    const several = await aenv(["attach", id], open({ terminal: true }));
    assert.match(several.stderr, /2 processes run in .*\nhint: say which/);
    for (const { io } of [one, two]) io.stdin.write("exit 0\r");
    await Promise.all([one.done, two.done]);
  });
});

describe("run", () => {
  const none = () => assert.deepEqual([...server.sandboxes.keys()], [id], "only the one that was there is left");

  it("has the command's streams and code, and leaves no sandbox", async () => {
    const io = open();
    io.stdin.end("in");
    const result = await aenv(["run", "base", "--", "sh", "-c", "cat; echo err >&2; exit 42"], io);
    assert.deepEqual([result.code, result.stdout, result.stderr], [42, "in", "err\n"]);
    none();
    assert.deepEqual(server.seen.findLast(({ path }) => path === "/v2/sandboxes")?.body, {
      templateID: "base",
      timeout: 300,
    });
  });

  it("CLI-08: leaves no sandbox when the command cannot run, and makes none for bad options", async () => {
    const io = open();
    io.stdin.end();
    assert.equal((await aenv(["run", "base", "no-such-program"], io)).code, 127);
    none();
    const created = server.seen.length;
    for (const argv of [
      ["run", "-e", "NOVALUE", "base", "true"],
      ["run", "-it", "base", "bash"],
      ["run", "base", "--"],
      ["run", "base"],
    ]) {
      assert.equal((await aenv(argv, open())).code, 125, argv.join(" "));
    }
    assert.equal(server.seen.length, created);
  });

  for (const name of ["SIGINT", "SIGTERM", "SIGHUP"] as const) {
    it(`CLI-08: leaves no sandbox after ${name}, in the command and before it`, async () => {
      const io = open();
      const running = aenv(["run", "base", "sh", "-c", "echo up; exec sleep 60"], io);
      await io.shows("stdout", "up");
      io.signal(name);
      assert.equal((await running).code, name === "SIGINT" ? 130 : 143);
      none();

      const early = open();
      server.scripted.set("POST /v2/sandboxes", () => {
        early.signal(name);
        return undefined;
      });
      const result = await aenv(["run", "base", "true"], early);
      server.scripted.clear();
      assert.deepEqual([result.code, result.stdout], [130, ""]);
      none();
      assert.equal(early.listeners(name), 0);
    });
  }

  it("-it: a terminal, no Ctrl-P Ctrl-Q, and Enter ~ . ends it all", async () => {
    const { io, done } = await typing(["run", "-it", "base", "--", "bash"]);
    io.stdin.write("\x10\x11\r");
    while (only().typed !== "\x10\x11\r") await setImmediate();
    io.stdin.write("~.");
    assert.equal((await done).code, 0);
    none();
  });

  it("says so when the sandbox could not be deleted, with the command's code all the same", async () => {
    const next = `i${String(Number([...server.sandboxes.keys()].at(-1)?.slice(1)) + 1).padStart(19, "0")}`;
    server.scripted.set(`DELETE /sandboxes/${next}`, () => ({ status: 503, body: { code: 503, message: "busy" } }));
    const io = open();
    io.stdin.end();
    const result = await aenv(["run", "base", "sh", "-c", "exit 3"], io);
    server.scripted.clear();
    assert.equal(result.code, 3);
    assert.match(result.stderr, new RegExp(`could not delete ${next}: busy\\nhint: .aenv rm ${next}. does`));
  });
});

describe("waiting", () => {
  it("shows what for on a terminal, from the second second on, and takes it away", async () => {
    const io = open({ terminal: true });
    server.scripted.set(`POST /sandboxes/${id}/pause`, async () => {
      await io.shows("stderr", `pausing ${id}, 1s`);
      return undefined;
    });
    const result = await aenv(["pause", id], io);
    server.scripted.clear();
    assert.deepEqual([result.stdout, result.stderr], [`Paused ${id}.\n`, `\r\x1b[Kpausing ${id}, 1s\r\x1b[K`]);
    const quick = open({ terminal: true });
    assert.equal((await aenv(["resume", id], quick)).stderr, "");
  });
});

describe("exec -it on a real terminal", { skip: NO_TERMINAL }, () => {
  for (const [name, steps, code] of [
    ["its end", [["send", "exit 3\r"]], 3],
    ["the detach keys", [["send", "\x10\x11"]], 0],
    ["SIGTERM", [["signal", "TERM"]], 143],
  ] as const) {
    it(`is as before after ${name}`, async () => {
      const result = await onTerminal(server.url, ["exec", "-it", id, "bash"], [
        ["expect", "ready$ "],
        ...steps,
      ] as never);
      assert.deepEqual([result.code, result.raw, result.restored], [code, true, true], result.shown);
    });
  }
});
