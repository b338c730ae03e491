import assert from "node:assert/strict";
import { readdirSync } from "node:fs";
import { describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Sandbox } from "e2b";
import { seeded } from "#lib/seeded";
import { type Answer, call as callOf } from "./calls.ts";
import { assertNothingLost } from "./host.ts";
import { newSandbox, output, useServer } from "./sdk.ts";
import { sharedServer, until } from "./server.ts";

async function call<T = { message: string }>(method: string, path: string, body?: unknown): Promise<Answer<T>> {
  return callOf<T>(await sharedServer(), method, path, body);
}

async function isGone(id: string): Promise<boolean> {
  return (await call("GET", `/sandboxes/${id}`)).status === 404;
}

describe("requests that meet", { timeout: 600_000 }, () => {
  it("an extension that was answered holds; the others' sandboxes go (LIFE-01)", async () => {
    useServer(await sharedServer());
    const born = await Promise.all(Array.from({ length: 10 }, () => Sandbox.create("base", { timeoutMs: 60_000 })));
    const ids = born.map(({ sandboxId }) => sandboxId);
    await Promise.all(ids.map((id) => call("POST", `/sandboxes/${id}/timeout`, { timeout: 1 })));
    const dueAtMs = Date.now() + 1_000;
    const outcomes = await Promise.all(
      ids.map(async (id, at) => {
        // From well before the end to after it, each a little later.
        await sleep(dueAtMs - Date.now() - 300 + at * 90);
        const { status } = await call("POST", `/sandboxes/${id}/timeout`, { timeout: 60 });
        return { id, status };
      }),
    );
    await sleep(1_500);
    for (const { id, status } of outcomes) {
      assert.ok(status === 204 || status === 404, `answered ${status}`);
      assert.equal(await isGone(id), status === 404, `answered ${status}`);
    }
    await Promise.all(ids.map((id) => call("DELETE", `/sandboxes/${id}`)));
  });

  it("a delete during a resume wins, every time (LIFE-02)", async () => {
    useServer(await sharedServer());
    const random = seeded(2);
    await Promise.all(
      Array.from({ length: 2 }, async () => {
        for (let round = 0; round < 5; round += 1) {
          const { sandboxId } = await Sandbox.create("base", { timeoutMs: 60_000 });
          await Sandbox.pause(sandboxId);
          const resumed = call("POST", `/sandboxes/${sandboxId}/connect`, { timeout: 60 });
          await sleep(random() * 200);
          assert.equal((await call("DELETE", `/sandboxes/${sandboxId}`)).status, 204);
          assert.ok([200, 201, 404].includes((await resumed).status));
          assert.equal(await isGone(sandboxId), true);
        }
      }),
    );
    await assertNothingLost(await sharedServer());
  });

  it("a resume right after a pause waits for it, every time (LIFE-04)", async () => {
    await using sandbox = await newSandbox();
    for (let round = 0; round < 10; round += 1) {
      const paused = call("POST", `/sandboxes/${sandbox.sandboxId}/pause`);
      await sleep(round % 2 === 0 ? 5 : 0);
      const connected = await call("POST", `/sandboxes/${sandbox.sandboxId}/connect`, { timeout: 60 });
      assert.ok([200, 201].includes(connected.status), connected.body.message);
      assert.equal((await paused).status, 204);
      // The pause that came second, after the connect, holds.
      if (connected.status === 200) await sandbox.connect();
      const echo = await sandbox.commands.run(`echo ${round}`, { timeoutMs: 5_000, requestTimeoutMs: 5_000 });
      assert.equal(echo.stdout, `${round}\n`);
    }
  });

  it("many clients that resume one sandbox get one (LIFE-05)", async () => {
    await using sandbox = await newSandbox();
    await sandbox.commands.run("echo $$ > before; sleep 1000 & echo $! > sleeper");
    const before = await output(sandbox, "cat before sleeper");
    for (const delayMs of [0, 500]) {
      const paused = sandbox.pause();
      await sleep(delayMs);
      const clients = await Promise.all(Array.from({ length: 10 }, () => Sandbox.connect(sandbox.sandboxId)));
      await paused;
      const seen = await Promise.all(
        clients.map((client) =>
          output(client, "cat /proc/sys/kernel/random/boot_id; cat before sleeper; pgrep -c sleep"),
        ),
      );
      assert.equal(new Set(seen).size, 1, "they are in different machines");
      assert.ok(seen[0]?.endsWith(`${before}\n1`), seen[0]);
    }
    await assertNothingLost(await sharedServer());
  });

  it("a read right after each resume is answered at once, over kept connections (SNAP-04)", async () => {
    await using sandbox = await newSandbox();
    await sandbox.files.write("f", "content");
    for (let round = 0; round < 5; round += 1) {
      assert.equal(await sandbox.files.read("f"), "content");
      await sandbox.pause();
      await sandbox.connect();
      const startedAtMs = Date.now();
      assert.equal(await sandbox.files.read("f"), "content");
      assert.ok(Date.now() - startedAtMs < 2_000, `round ${round}`);
    }
  });

  it("whatever meets, each sandbox ends whole or gone, and nothing is left over", async () => {
    const server = await sharedServer();
    useServer(server);
    const sandboxes = await Promise.all(
      Array.from({ length: 3 }, async (_, at) => {
        const sandbox = await Sandbox.create("base", { timeoutMs: 120_000 });
        await sandbox.files.write("who", String(at));
        return sandbox;
      }),
    );
    const killed = new Set<string>();
    const client = async (seed: number): Promise<void> => {
      const random = seeded(seed);
      for (let step = 0; step < 12; step += 1) {
        const sandbox = sandboxes[Math.floor(random() * sandboxes.length)];
        if (sandbox === undefined) continue;
        const path = `/sandboxes/${sandbox.sandboxId}`;
        const asks: readonly (() => Promise<Answer<{ message?: string } | { sandbox?: { sandboxID: string } }[]>>)[] = [
          () => call("POST", `${path}/pause`),
          () => call("POST", `${path}/connect`, { timeout: 120 }),
          () => call("POST", `${path}/connect`, { timeout: 120 }),
          () => call("POST", `${path}/timeout`, { timeout: 100 }),
          () => call("POST", `${path}/fork`, { count: 2 }),
          () => call("POST", `${path}/resume`, { timeout: 120 }),
        ];
        const isLast = seed === 1 && step === 11;
        if (isLast) killed.add(sandbox.sandboxId);
        const ask = isLast ? () => call("DELETE", path) : asks[Math.floor(random() * asks.length)];
        const { status, body } = (await ask?.()) ?? assert.fail();
        assert.ok([200, 201, 204, 404, 409].includes(status), `${status}: ${JSON.stringify(body)}`);
        if (status === 404) assert.ok(killed.has(sandbox.sandboxId), "one that nobody killed is gone");
        if (!Array.isArray(body)) continue;
        // A child has what its parent had, whatever happens to that.
        for (const { sandbox: child } of body) {
          assert.ok(child !== undefined, JSON.stringify(body));
          const fork = await Sandbox.connect(child.sandboxID);
          assert.equal(await fork.files.read("who"), String(sandboxes.indexOf(sandbox)));
          await fork.kill();
        }
      }
    };
    await Promise.all([1, 2, 3, 4].map(client));
    for (const [at, { sandboxId }] of sandboxes.entries()) {
      assert.equal(await isGone(sandboxId), killed.has(sandboxId));
      if (killed.has(sandboxId)) continue;
      assert.equal(await (await Sandbox.connect(sandboxId)).files.read("who"), String(at));
      await Sandbox.kill(sandboxId);
    }
    await assertNothingLost(server);
  });

  it("many lives leave the services as they were: files, threads (OPS-04)", async () => {
    const server = await sharedServer();
    useServer(server);
    const live = async (): Promise<void> => {
      const sandbox = await Sandbox.create("base", { timeoutMs: 60_000 });
      await sandbox.commands.run("true");
      await sandbox.pause();
      await sandbox.connect();
      await sandbox.kill();
    };
    const lives = async (count: number): Promise<void> => {
      for (let at = 0; at < count; at += 2) await Promise.all([live(), live()]);
      await assertNothingLost(server);
    };
    await lives(4);
    const before = SERVICES.map((name) => held(server.pid(name)));
    await lives(12);
    for (const [at, name] of SERVICES.entries()) {
      const { files, threads } = before[at] ?? assert.fail();
      // Some connections between the services come and go; what leaked would be one a life or more.
      const isBack = (): boolean => {
        const now = held(server.pid(name));
        return now.files < files + 8 && now.threads < threads + 8;
      };
      await until(`${name} to be back at ${files} files and ${threads} threads`, isBack, 10_000);
    }
  });
});

const SERVICES = ["keeper", "blobd", "aenvd", "edge"];

function held(pid: number): { readonly files: number; readonly threads: number } {
  return { files: readdirSync(`/proc/${pid}/fd`).length, threads: readdirSync(`/proc/${pid}/task`).length };
}
