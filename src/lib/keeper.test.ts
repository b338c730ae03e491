import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer, type Server } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import { Code, ConnectError } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { Keeper as KeeperService } from "#gen/aenv/keeper/v1/keeper_pb.js";
import { connectKeeper } from "./keeper.ts";

const text = (bytes: Uint8Array) => new TextDecoder().decode(bytes);

/** A keeper whose processes live in this test: it echoes commands, and ends processes when told to. */
class ScriptedKeeper {
  readonly socketPath: string;
  runs = 0;
  tracked: number[] = [];
  gone = new Set<number>();
  #server: Server | undefined;
  #tell: ((pid: number) => void) | undefined;

  constructor(socketPath: string) {
    this.socketPath = socketPath;
  }

  async listen(): Promise<void> {
    const handler = connectNodeAdapter({
      routes: (router) =>
        router.service(KeeperService, {
          run: async (request) => {
            this.runs += 1;
            if (request.argv[0] === "endless") await new Promise(() => {});
            if (request.argv[0] === "missing") throw new ConnectError("cannot start missing", Code.FailedPrecondition);
            const stdout = new TextEncoder().encode(`${request.argv.join(" ")}|${text(request.stdin)}`);
            return { exitCode: request.argv[0] === "false" ? 1 : 0, stdout };
          },
          track: ({ pid }) => {
            this.tracked.push(pid);
            if (this.gone.has(pid)) this.#tell?.(pid);
            return { alive: !this.gone.has(pid) };
          },
          exits: async function* (this: ScriptedKeeper) {
            const queue: number[] = [];
            let wake = Promise.withResolvers<void>();
            this.#tell = (pid) => {
              queue.push(pid);
              wake.resolve();
            };
            yield { seq: 0n, epoch: "e" };
            for (;;) {
              await wake.promise;
              wake = Promise.withResolvers<void>();
              for (const pid of queue.splice(0)) yield { pid, startTicks: 7n, exitCode: 5, atUnixMs: 1000n };
            }
          }.bind(this),
        }),
    });
    this.#server = createServer(handler).listen(this.socketPath);
    await once(this.#server, "listening");
  }

  end(pid: number): void {
    this.gone.add(pid);
    this.#tell?.(pid);
  }

  async stop(): Promise<void> {
    const server = this.#server;
    if (server === undefined) return;
    this.#server = undefined;
    const closed = once(server, "close");
    server.close();
    server.closeAllConnections();
    await closed;
  }
}

async function setUp(t: TestContext) {
  const dir = await mkdtemp(join(tmpdir(), "aenv-keeper-"));
  const scripted = new ScriptedKeeper(join(dir, "keeper.sock"));
  const keeper = connectKeeper(scripted.socketPath);
  t.after(async () => {
    await keeper.close();
    await scripted.stop();
    await rm(dir, { recursive: true });
  });
  return { scripted, keeper };
}

async function until(what: string, condition: () => boolean): Promise<void> {
  for (const giveUpAt = Date.now() + 10_000; Date.now() < giveUpAt; ) {
    if (condition()) return;
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  assert.fail(`not so after 10 s: ${what}`);
}

test("runs commands; failures and refusals are errors", async (t) => {
  const { scripted, keeper } = await setUp(t);
  await scripted.listen();
  const result = await keeper.run(["echo", "a"], { stdin: "in" });
  assert.equal(text(result.stdout), "echo a|in");
  assert.equal((await keeper.run(["false"], { check: false })).exitCode, 1);
  await assert.rejects(keeper.run(["false"]), { name: "CommandError" });
  await assert.rejects(keeper.run(["missing"]), { message: "cannot start missing" });
  assert.equal(scripted.runs, 4);
});

test("a command waits for a keeper that is being started", async (t) => {
  const { scripted, keeper } = await setUp(t);
  const result = keeper.run(["true"]);
  await new Promise((resolve) => setTimeout(resolve, 50));
  await scripted.listen();
  assert.equal((await result).exitCode, 0);
  assert.equal(scripted.runs, 1);
});

test("a command under way when the keeper dies is lost, and not run again", async (t) => {
  const { scripted, keeper } = await setUp(t);
  await scripted.listen();
  const result = keeper.run(["endless"]);
  const lost = assert.rejects(result, { name: "RunnerLostError" });
  await until("it runs", () => scripted.runs === 1);
  await scripted.stop();
  await scripted.listen();
  await lost;
  assert.equal(scripted.runs, 1);
});

test("an exit is told once for all who wait, and a process that is gone already at once", async (t) => {
  const { scripted, keeper } = await setUp(t);
  await scripted.listen();
  scripted.gone.add(101);
  const first = keeper.exited(100, 7n);
  assert.equal(keeper.exited(100, 7n), first);
  assert.deepEqual(await keeper.exited(101, 7n), { exitCode: 5, signal: 0, atMs: 1000 });
  scripted.end(100);
  assert.deepEqual(await first, { exitCode: 5, signal: 0, atMs: 1000 });
  assert.deepEqual(scripted.tracked.sort(), [100, 101]);
});

test("after a restart of the keeper all that is waited for is tracked again", async (t) => {
  const { scripted, keeper } = await setUp(t);
  await scripted.listen();
  const [lives, ends] = [keeper.exited(100, 7n), keeper.exited(101, 7n)];
  await until("both are tracked", () => scripted.tracked.length === 2);
  await scripted.stop();
  // Nobody can tell of this exit: only the question after the restart can.
  scripted.gone.add(101);
  scripted.tracked = [];
  await scripted.listen();
  assert.equal((await ends).exitCode, 5);
  assert.deepEqual(scripted.tracked.sort(), [100, 101]);
  scripted.end(100);
  assert.equal((await lives).exitCode, 5);
});

test("close ends with promises pending, and calls after it fail", async (t) => {
  const { scripted, keeper } = await setUp(t);
  await scripted.listen();
  void keeper.exited(100, 7n).then(() => assert.fail("settled"));
  await until("it is tracked", () => scripted.tracked.length === 1);
  await keeper.close();
  await assert.rejects(keeper.run(["true"]));
  assert.equal(scripted.runs, 0);
});
