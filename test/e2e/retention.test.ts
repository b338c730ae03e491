import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { Sandbox } from "e2b";
import { call, type Detail, detailOf } from "./calls.ts";
import { assertNothingLost } from "./host.ts";
import { output } from "./sdk.ts";
import { startTestServer, type TestServer, until } from "./start.ts";

const RETENTION_MS = 9_000;

let server: TestServer;

describe("paused sandboxes of a server that keeps them for a time", { timeout: 240_000 }, () => {
  before(async () => {
    server = await startTestServer({ settings: { pausedRetentionHours: RETENTION_MS / 3_600_000 } });
  });
  after(() => server.stop());

  it("say when they go and go then, over a restart; what was made of them stays, and so does what runs", async () => {
    const at = { apiUrl: server.url, sandboxUrl: server.url, apiKey: server.apiKey };
    const [left, resumed] = await Promise.all(
      Array.from({ length: 2 }, () => Sandbox.create("base", { ...at, timeoutMs: 300_000 })),
    );
    assert.ok(left !== undefined && resumed !== undefined);
    await left.files.write("note", "kept");
    const { snapshotId } = await left.createSnapshot();
    const [fork] = await left.fork();
    assert.ok(fork instanceof Sandbox, String(fork));
    await left.pause();
    await resumed.pause();
    const paused = await detailOf(server, left.sandboxId);
    assert.equal(Date.parse(String(paused.removeAt)), Date.parse(paused.endAt) + RETENTION_MS);
    const { body: listed } = await call<Detail[]>(server, "GET", "/v2/sandboxes?state=paused");
    assert.equal(listed.find(({ sandboxID }) => sandboxID === left.sandboxId)?.removeAt, paused.removeAt);
    await resumed.connect();
    assert.equal("removeAt" in (await detailOf(server, resumed.sandboxId)), false);

    await server.killService("aenvd");
    const isGone = async (id: string) => (await call(server, "GET", `/sandboxes/${id}`)).status === 404;
    await until("its end", () => isGone(left.sandboxId), 60_000);
    assert.ok(Date.now() >= Date.parse(String(paused.removeAt)), "it went too soon");
    assert.equal((await call(server, "POST", `/sandboxes/${left.sandboxId}/connect`, { timeout: 60 })).status, 404);
    const log = readFileSync(join(server.dataDir, "log", "aenvd.log"), "utf8").split("\n");
    assert.ok(log.some((line) => line.includes(left.sandboxId) && line.includes("kept long enough")));

    const child = await Sandbox.create(snapshotId, { ...at, timeoutMs: 300_000 });
    for (const each of [child, fork]) assert.equal(await output(each, "cat note"), "kept");
    assert.equal(await output(resumed, "echo runs"), "runs");
    await assertNothingLost(server);
  });
});
