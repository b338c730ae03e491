import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Sandbox, type SandboxOpts } from "e2b";
import { messagesOf } from "./calls.ts";
import { assertNothingLost, heldMib, metric } from "./host.ts";
import { SERVICE_PORT } from "./live.ts";
import { output } from "./sdk.ts";
import { startTestServer, type TestServer, until } from "./start.ts";

const IDLE_AFTER_MS = 1_000;
const HELD_MIB = 96;
const SLEEPS_MS = 3_000;

let server: TestServer;

async function create(options: SandboxOpts = {}): Promise<Sandbox & AsyncDisposable> {
  const at = { apiUrl: server.url, sandboxUrl: server.url, apiKey: server.apiKey };
  const sandbox = await Sandbox.create("base", { ...at, timeoutMs: 300_000, ...options });
  return Object.assign(sandbox, {
    async [Symbol.asyncDispose]() {
      await Sandbox.kill(sandbox.sandboxId, at);
    },
  });
}

function frozenNow(): Promise<number> {
  return metric(server, "aenv_frozen_sandboxes");
}

async function frozen(count: number): Promise<void> {
  await until(`${count} frozen`, async () => (await frozenNow()) === count);
}

describe("idle sandboxes", { timeout: 300_000 }, () => {
  before(async () => {
    server = await startTestServer({ settings: { idleAfterMs: IDLE_AFTER_MS } });
  });
  after(() => server.stop());

  it("stand still, run for all who ask, and wake for any number of requests at once", async () => {
    await using sandbox = await create();
    await serve(sandbox);
    await frozen(1);
    assert.equal(await sandbox.isRunning(), true);
    await frozen(1);
    assert.equal((await sandbox.getInfo()).state, "running");
    const answers = await Promise.all(Array.from({ length: 24 }, () => answerOf(sandbox)));
    assert.deepEqual(new Set(answers), new Set([200]));
    await frozen(1);
    assert.equal(await output(sandbox, "echo awake"), "awake");
    await frozen(1);
    await sandbox.pause();
    await sandbox.connect();
    assert.equal(await output(sandbox, "echo awake"), "awake");
    await assertNothingLost(server);
  });

  it("stay awake while somebody listens to them, or they do something", async () => {
    await using listened = await create();
    await using busy = await create();
    const stream = await listened.commands.run("sleep 600", { background: true, timeoutMs: 0 });
    const work = await busy.commands.run("while :; do :; done", { background: true, timeoutMs: 0 });
    await work.disconnect();
    await sleep(5 * IDLE_AFTER_MS);
    assert.equal(await frozenNow(), 0);
    await stream.disconnect();
    await frozen(1);
  });

  it("come late to what they have set themselves a time for, but come to it", async () => {
    await using sandbox = await create();
    const late = await sandbox.commands.run(`sleep ${SLEEPS_MS / 1_000}; echo came late; date +%s%3N >late`, {
      background: true,
      timeoutMs: 0,
    });
    const dueAtMs = Date.now() + SLEEPS_MS;
    await late.disconnect();
    await frozen(1);
    // The moment that begins after its time is the last in which it can come to it.
    await until("its time, while it stands still", async () => Date.now() > dueAtMs && (await frozenNow()) === 1);
    await frozen(0);
    await frozen(1);
    // Of one that stands still nothing is read for whoever asks: what it said then was read before it came to rest again.
    const said = await messagesOf(server, sandbox.sandboxId);
    assert.equal(await frozenNow(), 1);
    assert.ok(said.includes("came late"), said.join("\n"));
    const readAtMs = Date.now();
    const wroteAtMs = Number(await sandbox.files.read("late"));
    assert.ok(wroteAtMs < readAtMs, "it was written only when somebody came");
  });

  it("are thawed when aenvd is killed and comes back, and have lost nothing", async () => {
    await using sandbox = await create();
    await sandbox.files.write("note", "kept");
    await serve(sandbox);
    await frozen(1);
    await server.killService("aenvd");
    const answers = await Promise.all(Array.from({ length: 8 }, () => answerOf(sandbox)));
    assert.deepEqual(new Set(answers), new Set([200]));
    assert.equal(await sandbox.files.read("note"), "kept");
    await frozen(1);
    await assertNothingLost(server);
  });

  it("give their memory back to the host while they stand still, and find it again", async () => {
    await using sandbox = await create();
    await sandbox.files.write(
      "holder.py",
      `import hashlib, os
from http.server import BaseHTTPRequestHandler, HTTPServer
held = [os.urandom(1 << 20) for _ in range(${HELD_MIB})]
class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        body = hashlib.sha256(b"".join(held)).hexdigest().encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
HTTPServer(("", ${SERVICE_PORT}), Answer).serve_forever()`,
    );
    const service = await sandbox.commands.run("exec python3 holder.py", { background: true, timeoutMs: 0 });
    await until("the service", async () => (await answerOf(sandbox)) === 200);
    await service.disconnect();
    const before = await textOf(sandbox);
    await frozen(1);
    await until("its memory to go", () => heldMib(server, sandbox.sandboxId) < HELD_MIB / 4);
    assert.equal(await textOf(sandbox), before);
    await frozen(1);
    await until("it to go again", () => heldMib(server, sandbox.sandboxId) < HELD_MIB / 4);
    await server.killService("aenvd");
    assert.equal(await textOf(sandbox), before);
    await sandbox.pause();
    await sandbox.connect();
    assert.equal(await textOf(sandbox), before);
  });

  /** A service that answers, and is not listened to. */
  async function serve(sandbox: Sandbox): Promise<void> {
    // Its own queue of five refuses some of many that come at once.
    const program = `import http.server as web
web.ThreadingHTTPServer.request_queue_size = 128
web.ThreadingHTTPServer(("", ${SERVICE_PORT}), web.SimpleHTTPRequestHandler).serve_forever()`;
    await sandbox.files.write("service.py", program);
    const service = await sandbox.commands.run("exec python3 service.py", { background: true, timeoutMs: 0 });
    await until("the service", async () => (await answerOf(sandbox)) === 200);
    await service.disconnect();
  }

  async function answerOf(sandbox: Sandbox): Promise<number> {
    const response = await ask(sandbox);
    await response.arrayBuffer();
    return response.status;
  }

  async function textOf(sandbox: Sandbox): Promise<string> {
    return await (await ask(sandbox)).text();
  }

  function ask({ sandboxId }: Sandbox): Promise<Response> {
    const headers = { "E2b-Sandbox-Id": sandboxId, "E2b-Sandbox-Port": String(SERVICE_PORT) };
    return fetch(server.url, { headers, signal: AbortSignal.timeout(30_000) });
  }
});
