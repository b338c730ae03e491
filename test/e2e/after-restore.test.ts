import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Sandbox } from "e2b";
import { messagesOf } from "./calls.ts";
import { ask, to } from "./http.ts";
import { newSandbox, output } from "./sdk.ts";
import { sharedServer, until } from "./server.ts";

const PAUSED_MS = 1_500;
const HOOK = "/etc/aenv/on-restore";
/** What the first command in a copy asks: the time, who it is, what the kernel draws. */
const FIRST = `date +%s%3N; hostname; cat /etc/hostname; getent hosts $(hostname) | cut -d' ' -f1; grep -c 127.0.1.1 /etc/hosts
cat /proc/sys/kernel/random/uuid; head -c 32 /dev/urandom | base64 -w0; echo; python3 -c 'import secrets; print(secrets.token_hex())'
cat /run/aenv/generation`;

interface First {
  readonly driftMs: number;
  readonly names: readonly string[];
  readonly random: readonly string[];
  readonly marker: Record<string, string>;
}

async function firstCommand(sandbox: Sandbox): Promise<First> {
  const askedAtMs = Date.now();
  const [date, name, file, address, entries, ...rest] = (await output(sandbox, FIRST)).split("\n");
  const ms = Number(date);
  return {
    driftMs: ms < askedAtMs ? askedAtMs - ms : Math.max(0, ms - Date.now()),
    names: [name, file, address, entries].map(String),
    random: rest.slice(0, 3),
    marker: Object.fromEntries(rest.slice(3).map((line) => line.split("=") as [string, string])),
  };
}

function assertItself(first: First, id: string, generation: number): void {
  assert.ok(first.driftMs < 1_000, `its clock is ${first.driftMs} ms off`);
  assert.deepEqual(first.names, [id, id, "127.0.1.1", "1"]);
  const { AENV_GENERATION_ID: generationId, ...who } = first.marker;
  assert.deepEqual(who, { AENV_SANDBOX_ID: id, AENV_GENERATION: String(generation) });
  assert.match(String(generationId), /^[0-9a-f]{32}$/);
}

async function put(sandbox: Sandbox, name: string): Promise<void> {
  await sandbox.files.write(name, readFileSync(join(import.meta.dirname, "guest", name), "utf8"));
}

async function start(sandbox: Sandbox, command: string): Promise<void> {
  const started = await sandbox.commands.run(`exec ${command}`, { background: true, timeoutMs: 0 });
  // Its stream ends with the incarnation; nobody waits for it.
  started.wait().catch(() => {});
}

async function forksOf(sandbox: Sandbox, count: number): Promise<Sandbox[]> {
  return (await sandbox.fork({ count })).map((result) => {
    assert.ok(result instanceof Sandbox, String(result));
    return result;
  });
}

async function killAll(sandboxes: readonly Sandbox[]): Promise<void> {
  await Promise.all(sandboxes.map((sandbox) => sandbox.kill()));
}

async function installHook(sandbox: Sandbox, script: string): Promise<void> {
  await sandbox.files.write(HOOK, `#!/bin/sh\n${script}\n`, { user: "root" });
  await sandbox.commands.run(`chmod 755 ${HOOK}`, { user: "root" });
}

describe("right after a restore", { timeout: 300_000 }, () => {
  it("a sandbox is itself at its first command: clock, names, the kernel's randomness, the generation (SNAP-01, SNAP-02, SNAP-07)", async () => {
    await using sandbox = await newSandbox();
    const born = await firstCommand(sandbox);
    assertItself(born, sandbox.sandboxId, 1);
    for (const program of ["generation_watch.py", "repeats.py"]) {
      await put(sandbox, program);
      await start(sandbox, `python3 ${program}`);
    }
    const both = ["watching", "repeats.sock"].map((file) => () => sandbox.files.exists(file));
    for (const there of both) await until("the programs", there);
    const forks = await forksOf(sandbox, 4);
    try {
      const copies = await Promise.all(forks.map(firstCommand));
      for (const [at, copy] of copies.entries()) assertItself(copy, forks[at]?.sandboxId ?? "", 1);
      const all = [born, ...copies];
      for (const index of [0, 1, 2]) assert.equal(new Set(all.map(({ random }) => random[index])).size, all.length);
      assert.equal(new Set(all.map(({ marker }) => marker.AENV_GENERATION_ID)).size, all.length);
      // What a program holds in memory is copied: it repeats, unless the program heeds the marker.
      const repeated = await Promise.all(forks.map((fork) => output(fork, "socat -u UNIX-CONNECT:repeats.sock -")));
      assert.equal(new Set(repeated).size, 1, String(repeated));
      const reseeded = await Promise.all(
        forks.map((fork) => output(fork, "until [ -e reseeded ]; do sleep 0.05; done; cat reseeded")),
      );
      assert.equal(new Set(reseeded.map((text) => text.split("\n").at(-1))).size, forks.length, String(reseeded));
      for (const [at, fork] of forks.entries()) assert.ok(reseeded[at]?.includes(fork.sandboxId));
      // The source goes on as what it was.
      assert.deepEqual((await firstCommand(sandbox)).marker, born.marker);
      assert.equal(await sandbox.files.exists("reseeded"), false);
    } finally {
      await killAll(forks);
    }
    await sandbox.pause();
    await sandbox.connect();
    const resumed = await firstCommand(sandbox);
    assertItself(resumed, sandbox.sandboxId, 2);
    assert.notEqual(resumed.marker.AENV_GENERATION_ID, born.marker.AENV_GENERATION_ID);
  });

  it("a hook of its own has run as root before the first command of a copy", async () => {
    await using sandbox = await newSandbox({ envs: { OF_SANDBOX: "1" } });
    await installHook(
      sandbox,
      `sleep 0.5; echo "$(id -un) $AENV_SANDBOX_ID $AENV_GENERATION $OF_SANDBOX" >> /run/hooked; . /run/aenv/generation
[ "$(hostname)" = "$AENV_SANDBOX_ID" ] && echo named >> /run/hooked`,
    );
    const hooked = async (of: Sandbox): Promise<string> => output(of, "cat /run/hooked");
    await sandbox.pause();
    await sandbox.connect();
    const once = `root ${sandbox.sandboxId} 2 1\nnamed`;
    assert.equal(await hooked(sandbox), once);
    const [fork] = await forksOf(sandbox, 1);
    assert.ok(fork !== undefined);
    try {
      assert.equal(await hooked(fork), `${once}\nroot ${fork.sandboxId} 1 1\nnamed`);
      assert.equal(await hooked(sandbox), once, "the source was not restored");
    } finally {
      await fork.kill();
    }
  });

  it("a hook that fails or hangs is told in the log and keeps no sandbox from starting", async () => {
    await using sandbox = await newSandbox();
    const logged = async (): Promise<string[]> =>
      messagesOf(await sharedServer(), sandbox.sandboxId, { level: "warn" });
    await installHook(sandbox, "echo no; exit 3");
    await sandbox.pause();
    await sandbox.connect();
    await until("the failure", async () => (await logged()).includes(`${HOOK} failed: exit status 3`));
    await installHook(sandbox, "sleep 600");
    await sandbox.pause();
    await sandbox.connect();
    assert.equal(await output(sandbox, "pgrep -cx sleep"), "1", "it does not go on");
    await until("the delay", async () =>
      (await logged()).some((message) => message.startsWith(`${HOOK} has not ended within 5s`)),
    );
  });

  it("servers on the event loops of Node and Go go on, with timers and connections inside (SNAP-11)", async () => {
    await using sandbox = await newSandbox();
    const { sandboxId } = sandbox;
    await sandbox.files.write("node", new Blob([readFileSync(process.execPath)]));
    await put(sandbox, "timers.mjs");
    await start(sandbox, "sh -c 'chmod +x node; exec ./node timers.mjs'");
    // The agent is a program in Go: a second one, told something that only its memory holds.
    await start(sandbox, "/.aenv/envd -listen 127.0.0.1:8302");
    const asked = async (of: string, port: number, path = "/") =>
      await ask(await sharedServer(), { path, headers: to(of, port) });
    for (const port of [8301, 8302])
      await until(`port ${port}`, async () => (await asked(sandboxId, port, "/health")).status < 300);
    await sandbox.commands.run(`curl -sf localhost:8302/init -d '{"envVars":{"KEPT":"in memory"}}'`);
    let last = { pid: 0, hits: 0, ticks: 0, connections: 1 };
    const assertGoesOn = async (of: string): Promise<void> => {
      const before = last;
      await until(`the interval in ${of}`, async () => {
        last = JSON.parse((await asked(of, 8301)).text) as typeof last;
        return last.ticks > before.ticks + 1;
      });
      if (before.pid !== 0) assert.equal(last.pid, before.pid);
      assert.ok(last.hits > before.hits);
      assert.equal(last.connections, 1, "its connection to itself broke");
      assert.equal((await asked(of, 8302, "/envs")).text, '{"KEPT":"in memory"}');
    };
    await assertGoesOn(sandboxId);
    const [before, beforeAtMs] = [last.ticks, performance.now()];
    await sandbox.pause();
    await sleep(PAUSED_MS);
    await sandbox.connect();
    await assertGoesOn(sandboxId);
    // SNAP-16: what the interval missed is not made up for.
    const ranMs = performance.now() - beforeAtMs - PAUSED_MS;
    assert.ok((last.ticks - before - 5) * 50 < ranMs, `${last.ticks - before} ticks in ${ranMs} ms`);
    const [fork] = await forksOf(sandbox, 1);
    assert.ok(fork !== undefined);
    try {
      const ofBoth = last;
      await assertGoesOn(fork.sandboxId);
      last = ofBoth;
      await assertGoesOn(sandboxId);
    } finally {
      await fork.kill();
    }
  });

  it("the source of a fork keeps its connections and its processes", async () => {
    await using sandbox = await newSandbox();
    const { sandboxId } = sandbox;
    for (const program of ["stream.py", "web_socket.py"]) {
      await put(sandbox, program);
      await start(sandbox, `python3 ${program}`);
    }
    const server = await sharedServer();
    for (const port of [8081, 8082])
      await until(
        `port ${port}`,
        async () => (await ask(server, { path: "/", headers: to(sandboxId, port) })).status !== 502,
      );
    const socket = new WebSocket(server.url.replace("http", "ws"), { headers: to(sandboxId, 8081) });
    const heard: string[] = [];
    let closed = false;
    socket.addEventListener("close", () => {
      closed = true;
    });
    socket.binaryType = "arraybuffer";
    socket.addEventListener("message", ({ data }) => heard.push(String(data)));
    await until("the greeting", () => heard.length === 1);
    const events = await fetch(`${server.url}/events`, { headers: to(sandboxId, 8082) });
    assert.ok(events.body);
    const reader = events.body.pipeThrough(new TextDecoderStream()).getReader();
    assert.match((await reader.read()).value ?? "", /data: 1/);
    let lines = "";
    const counter = await sandbox.commands.run("i=0; while :; do echo $((i=i+1)); sleep 0.1; done", {
      background: true,
      timeoutMs: 0,
      onStdout: (text) => {
        lines += text;
      },
    });
    await until("the first lines", () => lines.split("\n").length > 2);

    const [fork] = await forksOf(sandbox, 1);
    assert.ok(fork !== undefined);
    try {
      socket.send("still");
      await until("the echo", () => heard.includes("echo still"));
      await ask(server, { path: "/release", headers: to(sandboxId, 8082) });
      assert.match((await reader.read()).value ?? "", /data: 2/);
      const seen = lines.split("\n").length;
      await until("more lines", () => lines.split("\n").length > seen + 3);
      const counted = lines.split("\n").slice(0, -1).map(Number);
      assert.deepEqual(
        counted,
        Array.from(counted, (_, at) => at + 1),
      );
      assert.equal(closed, false);
      // The copy has the processes, and connections of its own only.
      assert.ok((await fork.commands.list()).some(({ pid }) => pid === counter.pid));
      assert.equal((await ask(server, { path: "/release", headers: to(fork.sandboxId, 8082) })).status, 200);
    } finally {
      await fork.kill();
      socket.close();
    }
    assert.equal(await counter.kill(), true);
  });
});
