import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { MemoryCatalog, Templates } from "#catalog";
import { AenvError, type Build, DEFAULT_RESOURCES, newBuildId } from "#domain";
import { silentLogger } from "#lib/log";
import type { CreateRequest } from "./cluster.ts";
import { SingleNodeCluster } from "./single.ts";
import { FakeNode } from "./testing.ts";

let node: FakeNode;
let templates: Templates;
let cluster: SingleNodeCluster;
beforeEach(() => {
  node = new FakeNode();
  templates = new Templates(new MemoryCatalog(), () => node.nowMs);
  cluster = new SingleNodeCluster({ node, templates, logger: silentLogger });
});

const REQUEST: CreateRequest = {
  template: "base",
  env: { B: "mine" },
  metadata: {},
  network: { internet: true },
  traffic: { isPublic: true },
  timeoutMs: 15_000,
  onTimeout: "kill",
  autoResume: false,
  secure: true,
};

async function publish(name: string, ...tags: string[]): Promise<Build> {
  const { id: templateId } = await templates.claim(name);
  const image = await node.pullImage(
    { kind: "local", digest: "sha256:0" },
    "test",
    () => {},
    new AbortController().signal,
  );
  const request = { image, resources: DEFAULT_RESOURCES, env: { A: "a", B: "b" }, defaultUser: "user", commands: {} };
  const snapshot = await node.makeSnapshot(request, () => {}, new AbortController().signal);
  node.nowMs += 1;
  const id = newBuildId();
  const build = { id, templateId, status: "ready" as const, resources: DEFAULT_RESOURCES, createdAtMs: node.nowMs };
  await templates.addBuild({ ...build, tags, snapshot });
  await templates.publish({ ...build, tags, snapshot });
  return { ...build, snapshot };
}

test("a sandbox gets its template's resources, variables and user; the request's variables win", async () => {
  const build = await publish("base", "default");
  const sandbox = await cluster.create(REQUEST);
  const { spec } = sandbox;
  assert.deepEqual(spec.env, { A: "a", B: "mine" });
  assert.equal(spec.templateId, build.templateId);
  assert.equal(spec.alias, "base");
  assert.equal(spec.defaultUser, "user");
  assert.equal(sandbox.snapshotId, build.snapshot?.id);
  assert.equal((await cluster.template("base")).template.spawnCount, 1);
});

test("sandboxes that are not yet or no longer there are not shown", async () => {
  await publish("base", "default");
  const { id } = await cluster.create(REQUEST);
  for (const [state, shown] of [
    ["creating", false],
    ["killing", false],
    ["pausing", true],
    ["paused", true],
  ] as const) {
    node.setState(id, state);
    assert.equal((await cluster.list()).length, shown ? 1 : 0, state);
    if (shown) await cluster.get(id);
    else await assert.rejects(cluster.get(id), { kind: "not-found" });
  }
});

test("a template in use, or about to be, is not deleted; afterwards it and its snapshots go, once", async () => {
  await publish("base", "default");
  const gate = node.holdNext("create");
  const creating = cluster.create(REQUEST);
  await gate.entered;
  await assert.rejects(cluster.deleteTemplate("base"), { kind: "invalid", message: /used by 1 sandboxes/ });
  gate.open();
  const { id } = await creating;
  await cluster.pause(id);
  await assert.rejects(cluster.deleteTemplate("base"), { kind: "invalid" });
  await cluster.kill(id);
  await cluster.deleteTemplate("base");
  assert.equal(node.snapshots.size, 0);
  assert.deepEqual(await templates.builds(), []);
  await assert.rejects(cluster.deleteTemplate("base"), { kind: "not-found" });
  await assert.rejects(cluster.create(REQUEST), { kind: "not-found" });
});

test("a replaced build's snapshot is collected when no sandbox and no create uses it", async () => {
  const first = await publish("base", "default");
  const gate = node.holdNext("create");
  const creating = cluster.create(REQUEST);
  await gate.entered;
  await publish("base", "default");
  await cluster.collect();
  assert.equal(node.snapshots.size, 2);
  gate.open();
  const { id } = await creating;
  await cluster.collect();
  assert.equal(node.snapshots.has(first.snapshot?.id ?? ""), true);
  await cluster.kill(id);
  await cluster.collect();
  assert.equal(node.snapshots.has(first.snapshot?.id ?? ""), false);
  assert.equal(node.snapshots.size, 1);
  assert.equal((await templates.build(first.templateId, first.id))?.status, "ready");
});

test("a snapshot that cannot be deleted is tried again by the next collection", async () => {
  await publish("base", "default");
  node.failNext("deleteSnapshot", new Error("busy"));
  await cluster.deleteTemplate("base");
  assert.equal(node.snapshots.size, 1);
  await cluster.collect();
  assert.equal(node.snapshots.size, 0);
});

test("with a tag written, a template is only deleted when it has no other", async () => {
  await publish("base", "default", "v1");
  await assert.rejects(cluster.deleteTemplate("base:v1"), { kind: "invalid", message: /other tags/ });
  await assert.rejects(cluster.deleteTemplate("base:v2"), { kind: "not-found" });
  await cluster.removeTags("base", ["v1"]);
  await cluster.deleteTemplate("default/base:default");
  assert.deepEqual(await cluster.listTemplates(), []);
});

test("a snapshot that cannot be recorded, at whatever record, leaves nothing", async () => {
  await publish("base", "default");
  const { id } = await cluster.create(REQUEST);
  const before = [...node.snapshots.keys()];
  for (const step of ["claim", "addBuild", "publish"] as const) {
    const real = templates[step];
    Object.assign(templates, { [step]: () => Promise.reject(new AenvError("exhausted", "no space")) });
    await assert.rejects(cluster.createSnapshot(id, { name: "mine" }), { kind: "exhausted" });
    Object.assign(templates, { [step]: real });
    assert.deepEqual([...node.snapshots.keys()], before, step);
    assert.equal(await templates.find("mine"), undefined, step);
  }
  assert.equal((await cluster.createSnapshot(id, { name: "mine" })).template.names[0], "mine");
});

test("a snapshot is not collected between its record and its tag", async () => {
  await publish("base", "default");
  const { id } = await cluster.create(REQUEST);
  const { publish: real } = templates;
  templates.publish = async (build) => {
    await cluster.collect();
    return real.call(templates, build);
  };
  const { snapshot } = await cluster.createSnapshot(id);
  assert.equal(node.snapshots.has(snapshot.id), true);
  assert.equal(
    (await cluster.create({ ...REQUEST, template: (await cluster.listSnapshots({}))[0]?.template.id ?? "" }))
      .snapshotId,
    snapshot.id,
  );
});
