import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { get } from "node:http";
import { join } from "node:path";
import { describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Sandbox } from "e2b";
import { api, ask, to } from "./http.ts";
import { newSandbox } from "./sdk.ts";
import { sharedServer, until } from "./server.ts";

const MIB = 1024 * 1024;
/** Address → port of a server bound to it alone. `localhost` is both loopbacks. */
const BOUND = { "0.0.0.0": 8101, "::": 8102, "127.0.0.1": 8103, "::1": 8104 } as const;

async function start(sandbox: Sandbox, program: string, ...args: string[]): Promise<void> {
  await sandbox.files.write(`${program}.py`, readFileSync(join(import.meta.dirname, `guest/${program}.py`), "utf8"));
  await sandbox.commands.run(`exec python3 ${program}.py ${args.join(" ")}`, { background: true, timeoutMs: 0 });
}

async function said(sandboxId: string, port: number): Promise<string> {
  const answer = await ask(await sharedServer(), { path: "/", headers: to(sandboxId, port) });
  return `${answer.status} ${answer.text}`;
}

async function assertAllAnswer(sandboxId: string): Promise<void> {
  for (const [address, port] of Object.entries(BOUND)) {
    await until(`${address} in ${sandboxId}`, async () => (await said(sandboxId, port)) === `200 ${address}`);
  }
  // Two on one port: the one that is bound to every address has the sandbox's own.
  assert.equal(await said(sandboxId, 8105), "200 every");
}

describe("services in a sandbox", { timeout: 180_000 }, () => {
  it("NET-05 are reached on whatever address they listen, also after a resume and in a fork", async () => {
    await using sandbox = await newSandbox();
    const each = Object.entries(BOUND).map(([address, port]) => `${address}:${port}`);
    // In this order: who asks port 8105 between the two would go on with the first.
    await start(sandbox, "bound", ...each, "127.0.0.1:8105=inner", "0.0.0.0:8105=every", "0.0.0.0:8106=all");
    await until("the servers", async () => (await said(sandbox.sandboxId, 8106)) === "200 all");
    await assertAllAnswer(sandbox.sandboxId);
    await sandbox.pause();
    await sandbox.connect();
    await assertAllAnswer(sandbox.sandboxId);
    const { json } = await api(await sharedServer(), "POST", `/sandboxes/${sandbox.sandboxId}/fork`, {});
    const [{ sandbox: copy }] = json as [{ sandbox: { sandboxID: string } }];
    await assertAllAnswer(copy.sandboxID);
    await Sandbox.kill(copy.sandboxID);
  });

  it("NET-08 wake their sandbox once for all who ask at the same time, whatever they ask", async () => {
    const server = await sharedServer();
    await using sandbox = await newSandbox({ lifecycle: { onTimeout: "pause", autoResume: true } });
    const { sandboxId } = sandbox;
    await start(sandbox, "large");
    await start(sandbox, "web_socket");
    for (const port of [8090, 8081]) {
      await until(`port ${port}`, async () => !(await said(sandboxId, port).then((text) => text.startsWith("502"))));
    }
    await sandbox.pause();
    const body = randomBytes(10 * MIB);
    const sum = `${body.length} ${createHash("sha256").update(body).digest("hex")}`;
    const post = fetch(server.url, { method: "POST", body, headers: to(sandboxId, 8090) });
    const upgraded = new Promise<number | undefined>((resolve, reject) => {
      const headers = {
        ...to(sandboxId, 8081),
        Connection: "Upgrade",
        Upgrade: "websocket",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
      };
      const asked = get(server.url, { headers });
      asked.once("upgrade", (answer, socket) => {
        socket.destroy();
        resolve(answer.statusCode);
      });
      asked.once("response", (answer) => resolve(answer.statusCode));
      asked.once("error", reject);
    });
    const reads = Array.from({ length: 18 }, async () => {
      const answer = await fetch(server.url, { headers: to(sandboxId, 8090) });
      await answer.body?.cancel();
      return answer.status;
    });
    assert.equal(await (await post).text(), sum);
    assert.equal(await upgraded, 101);
    assert.deepEqual(new Set(await Promise.all(reads)), new Set([200]));
    const log = readFileSync(join(server.dataDir, "log", "aenvd.log"), "utf8").split("\n");
    const started = log.filter((line) => line.includes(sandboxId) && line.includes("sandbox runs"));
    assert.equal(started.length, 2, started.join("\n"));
  });

  it("NET-04 lose nothing to slow readers, several at once", async () => {
    const server = await sharedServer();
    await using sandbox = await newSandbox();
    await start(sandbox, "large");
    await until("port 8090", async () => !(await said(sandbox.sandboxId, 8090)).startsWith("502"));
    const hashes = await Promise.all(
      Array.from({ length: 4 }, async () => {
        const answer = await fetch(server.url, { headers: to(sandbox.sandboxId, 8090) });
        const hash = createHash("sha256");
        const startedAtMs = performance.now();
        for await (const piece of answer.body ?? []) {
          hash.update(piece);
          if (performance.now() - startedAtMs < 2000) await sleep(50);
        }
        return hash.digest("hex");
      }),
    );
    const wanted = createHash("sha256");
    const piece = Buffer.alloc(MIB);
    for (let at = 0; at < 262_144; at += 1) piece.writeUInt32BE((at * at) % 65_521, 4 * at);
    for (let at = 0; at < 48; at += 1) wanted.update(piece.subarray(at)).update(piece.subarray(0, at));
    assert.deepEqual(new Set(hashes), new Set([wanted.digest("hex")]));
  });

  it("are open to who has the token of a sandbox without public traffic, by the SDK's own word", async () => {
    await using sandbox = await newSandbox({ network: { allowPublicTraffic: false } });
    await start(sandbox, "bound", "127.0.0.1:8103");
    const server = await sharedServer();
    assert.ok(sandbox.trafficAccessToken);
    const token = { "E2b-Traffic-Access-Token": sandbox.trafficAccessToken };
    await until("the service", async () => {
      const headers = { ...to(sandbox.sandboxId, 8103), ...token };
      return (await ask(server, { path: "/", headers })).status === 200;
    });
    assert.match(await said(sandbox.sandboxId, 8103), /^403 .*is missing/);
  });
});
