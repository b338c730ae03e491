import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { Agent, get, type IncomingMessage } from "node:http";
import { text } from "node:stream/consumers";
import { after, beforeEach, describe, it } from "node:test";
import { Sandbox, type SandboxOpts } from "e2b";
import { call, type Detail, messagesOf } from "./calls.ts";
import { assertNothingLost, indexOf, metric, sandboxProcess } from "./host.ts";
import { Live, SERVICE_PORT } from "./live.ts";
import { output } from "./sdk.ts";
import { startTestServer, type TestServer, until } from "./start.ts";

let server: TestServer;

// Not started where a filter leaves nothing of this file.
beforeEach(async () => {
  server ??= await startTestServer();
});
after(() => server?.stop());

/** For the SDK's calls, at this server and not the shared one. */
function at(of: TestServer = server): { apiUrl: string; sandboxUrl: string; apiKey: string } {
  return { apiUrl: of.url, sandboxUrl: of.url, apiKey: of.apiKey };
}

async function create(options: SandboxOpts = {}, of: TestServer = server): Promise<Sandbox & AsyncDisposable> {
  const sandbox = await Sandbox.create("base", { ...at(of), timeoutMs: 300_000, ...options });
  return Object.assign(sandbox, {
    async [Symbol.asyncDispose]() {
      await Sandbox.kill(sandbox.sandboxId, at(of));
    },
  });
}

/** A new edge has written its pid before it listens. */
async function answering(of: TestServer = server): Promise<void> {
  await until("the edge", async () => (await fetch(`${of.url}/health`).catch(() => undefined))?.ok === true);
}

async function list(of: TestServer = server): Promise<Map<string, string>> {
  const { status, body } = await call<Detail[]>(of, "GET", "/v2/sandboxes?limit=100");
  assert.equal(status, 200);
  return new Map(body.map((one) => [one.sandboxID, one.state]));
}

/** One connection to a service inside, kept open over many requests. */
class KeptConnection {
  readonly #agent = new Agent({ keepAlive: true, maxSockets: 1 });
  readonly #headers: Record<string, string>;
  readonly #ports = new Set<number | undefined>();

  constructor(sandbox: Sandbox, port: number) {
    this.#headers = { "E2b-Sandbox-Id": sandbox.sandboxId, "E2b-Sandbox-Port": String(port) };
  }

  async ask(): Promise<void> {
    const response = await new Promise<IncomingMessage>((resolve, reject) => {
      const request = get(server.url, { agent: this.#agent, headers: this.#headers, timeout: 5_000 }, resolve);
      request.once("socket", (socket) => {
        if (!socket.connecting) this.#ports.add(socket.localPort);
        else socket.once("connect", () => this.#ports.add(socket.localPort));
      });
      request.once("error", reject);
    });
    assert.equal(response.statusCode, 200, await text(response));
    response.resume();
  }

  /** How many connections it took. */
  get count(): number {
    return this.#ports.size;
  }

  close(): void {
    this.#agent.destroy();
  }
}

/** A command's output as it comes; `error` once the stream has ended. */
class Stream {
  lines = 0;
  error: unknown;

  static async open(sandbox: Sandbox): Promise<Stream> {
    const stream = new Stream();
    const handle = await sandbox.commands.run("while :; do echo on; sleep 0.05; done", {
      background: true,
      timeoutMs: 0,
      onStdout: (chunk) => {
        stream.lines += chunk.split("\n").length - 1;
      },
    });
    handle.wait().catch((error: unknown) => {
      stream.error = error;
    });
    return stream;
  }

  async assertGoesOn(): Promise<void> {
    const { lines } = this;
    await until("more of the stream", () => this.lines > lines + 3 || this.error !== undefined);
    assert.equal(this.error, undefined);
  }
}

describe("kill -9 of the services", { timeout: 600_000 }, () => {
  it("of aenvd cuts no connection and loses no sandbox; requests wait for its successor (OPS-01)", async () => {
    await using running = await create();
    await using paused = await create();
    const ending = await create({ timeoutMs: 60_000 });
    const [live, asleep] = await Promise.all([Live.start(running), Live.start(paused)]);
    await paused.pause();
    const stream = await Stream.open(running);
    const kept = new KeptConnection(running, SERVICE_PORT);
    await kept.ask();
    await ending.setTimeout(1_000);

    await server.endService("aenvd");
    const created = create();
    const listed = list();
    await kept.ask();
    await stream.assertGoesOn();
    assert.deepEqual(
      [(await listed).get(running.sandboxId), (await listed).get(paused.sandboxId)],
      ["running", "paused"],
    );
    await using another = await created;

    assert.equal(await output(another, "echo made"), "made");
    await kept.ask();
    assert.equal(kept.count, 1, "the connection was cut");
    kept.close();
    await stream.assertGoesOn();
    await live.resync();
    await live.assertGoesOn();
    await paused.connect();
    await asleep.assertGoesOn();
    // Its time ran out while nobody was there to see.
    await until("the end of the one whose time was up", async () => !(await list()).has(ending.sandboxId));
    await assertNothingLost(server);
  });

  it("of aenvd loses nothing of metrics and logs, of an ended sandbox neither", async () => {
    const logs = ({ sandboxId }: Sandbox): Promise<string[]> => messagesOf(server, sandboxId);
    await using running = await create();
    const ended = await create();
    assert.equal(await output(ended, "echo last words"), "last words");
    await ended.kill();
    const lastWords = await logs(ended);
    assert.ok(lastWords.includes("last words"));
    const ticking = await running.commands.run("n=0; while :; do n=$((n+1)); echo tick $n; sleep 0.02; done", {
      background: true,
      timeoutMs: 0,
    });
    ticking.wait().catch(() => {});
    await until("readings", async () => (await running.getMetrics()).length > 0);
    const readings = await running.getMetrics();
    for (let times = 0; times < 2; times += 1) {
      const before = await logs(running);
      await server.killService("aenvd");
      await until("more of the log", async () => (await logs(running)).length > before.length + 10);
      assert.deepEqual((await logs(running)).slice(0, before.length), before);
    }
    const ticks = (await logs(running)).flatMap((message) => /^tick (\d+)$/.exec(message)?.[1] ?? []).map(Number);
    assert.deepEqual(
      ticks,
      Array.from(ticks, (_, at) => at + 1),
      "a tick is missing, or there twice",
    );
    assert.deepEqual((await running.getMetrics()).slice(0, readings.length), readings);
    assert.deepEqual(await logs(ended), lastWords);
    await assertNothingLost(server);
  });

  it("of aenvd ends what stood ready, and nothing else: a paused sandbox goes on from its checkpoint", async () => {
    await using running = await create();
    await using paused = await create();
    const [live, asleep] = await Promise.all([Live.start(running), Live.start(paused)]);
    await paused.pause();
    const standing = async (kind: string): Promise<number> => metric(server, `aenv_ready_machines{kind="${kind}"}`);
    await until("a ready clone", async () => (await standing("clone")) > 0);
    assert.equal(await standing("copy"), 1);
    const copy = sandboxProcess(server, paused.sandboxId);
    await server.killService("aenvd");
    await until("the new server", async () => (await list()).size === 2);
    assert.equal(await standing("copy"), 0);
    await assertNothingLost(server);
    await until("the end of the copy", () => !existsSync(`/proc/${copy}`));
    await live.assertGoesOn();
    await paused.connect();
    await asleep.assertGoesOn();
  });

  for (const services of [["blobd"], ["edge"], ["aenvd", "blobd", "edge"]]) {
    it(`of ${services.join(", ")}: running and paused sandboxes go on (OPS-05)`, async () => {
      await using running = await create();
      await using paused = await create();
      const [live, asleep] = await Promise.all([Live.start(running), Live.start(paused)]);
      await paused.pause();
      await Promise.all(services.map((name) => server.killService(name)));
      if (services.includes("edge")) {
        await answering();
      }
      await live.assertGoesOn();
      await paused.connect();
      await asleep.assertGoesOn();
      await using another = await create();
      assert.equal(await output(another, "echo made"), "made");
      await running.pause();
      await running.connect();
      await live.assertGoesOn();
      await assertNothingLost(server);
    });
  }

  it("of the keeper: sandboxes and services go on, it is started again, and takes them up", async () => {
    await using running = await create();
    const live = await Live.start(running);
    const stream = await Stream.open(running);
    const services = ["blobd", "aenvd", "edge"];
    const pids = services.map(server.pid);
    const keeper = server.pid("keeper");
    process.kill(keeper, "SIGKILL");
    await until("its end", () => !existsSync(`/proc/${keeper}`));
    await stream.assertGoesOn();
    assert.equal((await list()).get(running.sandboxId), "running");

    await until("a new keeper", () => server.pid("keeper") !== keeper);
    assert.deepEqual(services.map(server.pid), pids);
    await stream.assertGoesOn();
    await live.assertGoesOn();
    await using another = await create();
    await another.pause();
    await another.connect();
    await server.killService("aenvd");
    await live.assertGoesOn();
    // The end of a machine that neither of them has started is seen.
    process.kill(sandboxProcess(server, another.sandboxId), "SIGKILL");
    await until("its end", async () => !(await list()).has(another.sandboxId));
    await assertNothingLost(server);
  });

  it("of the keeper together with one of those that look after it: the other does", async () => {
    await using running = await create();
    const live = await Live.start(running);
    for (const service of ["edge", "blobd"]) {
      const killed = ["keeper", service];
      const before = killed.map(server.pid);
      for (const pid of before) process.kill(pid, "SIGKILL");
      await until(`a new keeper and ${service}`, () => killed.every((name, at) => server.pid(name) !== before[at]));
      await answering();
      await assertNothingLost(server);
    }
    await live.assertGoesOn();
  });
});

describe("servers side by side", { timeout: 300_000 }, () => {
  it("do not notice each other, nor each other's restarts", async () => {
    const other = await startTestServer();
    try {
      assert.notEqual(indexOf(other), indexOf(server));
      await using mine = await create();
      await using theirs = await create({}, other);
      const [live, strange] = await Promise.all([Live.start(mine), Live.start(theirs)]);
      assert.deepEqual([...(await list()).keys()], [mine.sandboxId]);
      assert.deepEqual([...(await list(other)).keys()], [theirs.sandboxId]);
      await Promise.all(["aenvd", "blobd", "edge"].map((name) => other.killService(name)));
      await live.assertGoesOn();
      await answering(other);
      await strange.assertGoesOn();
      await assertNothingLost(server);
      await assertNothingLost(other);
    } finally {
      await other.stop();
    }
    assert.deepEqual([...(await list()).keys()], []);
    await assertNothingLost(server);
  });
});
