import assert from "node:assert/strict";
import { once } from "node:events";
import type { AddressInfo } from "node:net";
import { after, before, test } from "node:test";
import { serve } from "@hono/node-server";
import { AuthenticationError, RateLimitError, Sandbox, SandboxNotFoundError, Template } from "e2b";
import { AenvError } from "#domain";
import { KEY, TestApi } from "./testing.ts";

const api = new TestApi();
const server = serve({ fetch: api.app.fetch, hostname: "127.0.0.1", port: 0 });

before(async () => {
  await api.publish("base");
  if (!server.listening) await once(server, "listening");
  process.env.E2B_API_URL = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  process.env.E2B_API_KEY = KEY;
});
after(async () => {
  if ("closeAllConnections" in server) server.closeAllConnections();
  await new Promise((resolve) => server.close(resolve));
  await api.builder.close();
});

test("the published SDK leads a sandbox through its life", async () => {
  const metadata = { "a key": "v&1 ü" };
  const sandbox = await Sandbox.create("base", { metadata, timeoutMs: 60_000, lifecycle: { onTimeout: "pause" } });
  const { sandboxId } = sandbox;

  const info = await sandbox.getInfo();
  assert.equal(info.state, "running");
  assert.equal(info.name, "base");
  assert.deepEqual(info.metadata, metadata);
  assert.equal(info.endAt.getTime(), api.node.nowMs + 60_000);
  assert.equal(info.lifecycle?.onTimeout, "pause");

  await sandbox.setTimeout(90_000);
  assert.equal((await sandbox.getInfo()).endAt.getTime(), api.node.nowMs + 90_000);

  const found = await Sandbox.list({ query: { metadata, state: ["running", "paused"] } }).nextItems();
  assert.deepEqual(
    found.map((each) => each.sandboxId),
    [sandboxId],
  );
  assert.deepEqual(await Sandbox.list({ query: { metadata: { "a key": "other" } } }).nextItems(), []);

  assert.equal(await sandbox.pause(), true);
  assert.equal(await Sandbox.pause(sandboxId), false);
  assert.equal((await sandbox.getInfo()).state, "paused");
  const again = await Sandbox.connect(sandboxId, { timeoutMs: 120_000 });
  assert.equal(again.sandboxId, sandboxId);
  assert.equal((await again.getInfo()).state, "running");

  const copies = await again.fork({ count: 2, timeoutMs: 30_000 });
  assert.ok(copies.every((copy) => copy instanceof Sandbox));

  const paginator = Sandbox.list({ limit: 2 });
  const ids = new Set<string>();
  while (paginator.hasNext) for (const each of await paginator.nextItems()) ids.add(each.sandboxId);
  assert.equal(ids.size, 3);

  assert.equal(await again.kill(), true);
  assert.equal(await again.kill(), false);
  await assert.rejects(Sandbox.getInfo(sandboxId), SandboxNotFoundError);
  await assert.rejects(Sandbox.connect(sandboxId), SandboxNotFoundError);
});

test("the SDK's error classes are the right ones", async () => {
  await assert.rejects(Sandbox.create("nope"), /404: template 'nope' not found/);
  await assert.rejects(Sandbox.create("base", { apiKey: "e2b_00" }), (error) => error instanceof AuthenticationError);
  for (let tries = 0; tries < 6; tries += 1) api.node.failNext("create", new AenvError("exhausted", "full"));
  await assert.rejects(Sandbox.create("base"), (error) => error instanceof RateLimitError);
});

test("the SDK builds a template from an image and tags it", async () => {
  const lines: string[] = [];
  const template = Template().fromImage("debian:12");
  const onBuildLogs = (entry: { message: string }) => lines.push(entry.message);
  const built = await Template.build(template, "mine:v1", { cpuCount: 1, memoryMB: 512, onBuildLogs });
  assert.ok(
    lines.some((line) => line.includes("FROM debian:12")),
    lines.join("\n"),
  );
  assert.equal(await Template.exists("mine"), true);
  assert.equal(await Template.exists("mine:v2"), false);
  await Template.assignTags("mine:v1", ["v2"]);
  const tags = await Template.getTags(built.templateId);
  assert.deepEqual(tags.map(({ tag }) => tag).sort(), ["v1", "v2"]);
  await Template.removeTags("mine", ["v2"]);
  assert.equal(await Template.exists("mine:v2"), false);
  await assert.rejects(
    Template.build(Template().fromImage("debian:12").runCmd("true"), "mine"),
    /steps is not supported yet/,
  );
});

test("the SDK captures a sandbox, lists, pages, creates from and deletes snapshots", async () => {
  const sandbox = await Sandbox.create("base", { envs: { A: "1" } });
  const { sandboxId } = sandbox;
  const made = [];
  for (const name of ["snap", "snap:v2", undefined]) {
    api.node.nowMs += 1;
    made.push(await sandbox.createSnapshot(name === undefined ? {} : { name }));
  }
  const [first, second, unnamed] = made;
  assert.deepEqual(first, { snapshotId: "default/snap:default", names: ["default/snap"] });
  assert.deepEqual(second, { snapshotId: "default/snap:v2", names: ["default/snap"] });
  assert.deepEqual(unnamed?.names, []);
  const pages = [];
  const paginator = Sandbox.listSnapshots({ sandboxId, limit: 1 });
  while (paginator.hasNext) pages.push(await paginator.nextItems());
  assert.deepEqual(pages, [[unnamed], [second]]);
  assert.deepEqual(await sandbox.listSnapshots({ name: "default/snap:default" }).nextItems(), [first]);

  const child = await Sandbox.create(first?.snapshotId ?? "");
  await assert.rejects(Sandbox.deleteSnapshot(first?.snapshotId ?? ""), /is used by 1 sandboxes/);
  await child.kill();
  for (const { snapshotId } of made) {
    assert.equal(await Sandbox.deleteSnapshot(snapshotId), true);
    assert.equal(await Sandbox.deleteSnapshot(snapshotId), false);
  }
  await sandbox.kill();
  await assert.rejects(Sandbox.createSnapshot(sandboxId), SandboxNotFoundError);
});
