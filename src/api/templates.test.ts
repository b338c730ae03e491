import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { AenvError } from "#domain";
import { TestApi } from "./testing.ts";

let api: TestApi;
beforeEach(() => {
  api = new TestApi();
});
const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

test("a build by image: waiting, building with progress, ready with its log; empty 202", async () => {
  const asked = await api.call("POST", "/v3/templates", { name: "Py:v1", tags: ["a"], cpuCount: 1, memoryMB: 512 });
  assert.equal(asked.status, 202);
  const { templateID, buildID } = asked.body;
  assert.match(buildID, UUID);
  assert.match(templateID, /^[a-z0-9]{20}$/);
  const names = { public: false, names: ["py"], aliases: ["py"], tags: ["v1", "a"] };
  assert.deepEqual(asked.body, { templateID, buildID, ...names });
  const status = async (query = "") =>
    (await api.call("GET", `/templates/${templateID}/builds/${buildID}/status${query}`)).body;
  assert.equal((await status()).status, "waiting");

  const gate = api.node.holdNext("pullImage");
  const credentials = { username: "u", password: "p" };
  const start = () =>
    api.call("POST", `/v2/templates/${templateID}/builds/${buildID}`, {
      fromImage: "registry.example/py@sha256:00",
      fromImageRegistry: { type: "registry", ...credentials },
      steps: [],
      startCmd: "",
      fromTemplate: null,
      force: false,
    });
  const started = await start();
  assert.deepEqual([started.status, started.text, started.headers.get("content-length")], [202, "", "0"]);
  assert.equal((await start()).body.message, "build is not in waiting state");
  await gate.entered;
  const during = await status();
  assert.equal(during.status, "building");
  assert.deepEqual(during.progress, {
    phase: "downloading",
    doneBytes: 5,
    totalBytes: 10,
    layersDone: 1,
    layersTotal: 2,
  });
  assert.deepEqual(api.node.pulls, [{ kind: "registry", reference: "registry.example/py@sha256:00", credentials }]);
  gate.open();
  await api.builder.close();

  const done = await status();
  assert.equal(done.status, "ready");
  assert.equal(done.progress.phase, "done");
  assert.equal("reason" in done, false);
  const all = done.logEntries.length;
  assert.ok(all >= 3 && done.logs.length === all);
  assert.deepEqual(done.logEntries[0], {
    timestamp: "2030-01-02T03:04:05.000Z",
    level: "info",
    message: "FROM registry.example/py@sha256:00",
    step: "base",
  });
  assert.equal((await status("?logsOffset=1&limit=1")).logEntries[0].message, done.logs[1]);
  assert.deepEqual((await status(`?logsOffset=${all}`)).logEntries, []);
  assert.deepEqual((await status("?level=warn")).logEntries, []);
  assert.equal((await api.call("POST", "/sandboxes", { templateID: "py:a" })).status, 201);
  const made = api.node.list()[0]?.spec.resources;
  assert.deepEqual([made?.vcpus, made?.memoryBytes], [1, 512 * 1024 * 1024]);
});

test("an image on the node is taken by digest; a failed build tells step and reason", async () => {
  const { body } = await api.call("POST", "/v3/templates", { name: "x" });
  const digest = `sha256:${"c".repeat(64)}`;
  api.node.failNext("pullImage", new AenvError("not-found", "no such image"));
  await api.call("POST", `/v2/templates/x/builds/${body.buildID}`, { fromImage: digest });
  await api.builder.close();
  assert.deepEqual(api.node.pulls, [{ kind: "local", digest }]);
  const { body: info } = await api.call("GET", `/templates/x/builds/${body.buildID}/status`);
  assert.equal(info.status, "error");
  assert.deepEqual(info.reason, { message: "no such image", kind: "not-found", step: "base", logEntries: [] });
});

for (const [fields, message] of [
  [{}, /^fromImage is required/],
  [{ fromImage: "" }, /^fromImage is required/],
  [{ fromImage: "a b" }, /^fromImage/],
  [{ fromImage: "sha256:12" }, /^fromImage/],
  [{ fromImage: "x", steps: [{ type: "RUN", args: ["true"] }] }, /^steps is not supported yet$/],
  [{ fromTemplate: "base" }, /^fromTemplate is not supported yet$/],
  [{ fromImage: "x", startCmd: "a\0b" }, /^startCmd contains a NUL$/],
  [{ fromImage: "x", readyCmd: 1 }, /readyCmd/],
  [{ fromImage: "x", fromImageRegistry: { type: "aws" } }, /^fromImageRegistry\.type 'aws' is not supported yet/],
  [{ fromImage: "x", fromImageRegistry: { type: "registry", username: "u" } }, /^fromImageRegistry needs/],
] as const) {
  test(`starting a build refuses ${JSON.stringify(fields)} and leaves it waiting`, async () => {
    const { body } = await api.call("POST", "/v3/templates", { name: "x" });
    const path = `templates/x/builds/${body.buildID}`;
    const answer = await api.call("POST", `/v2/${path}`, fields);
    assert.equal(answer.status, 400);
    assert.match(answer.body.message, message);
    assert.equal((await api.call("GET", `/${path}/status`)).body.status, "waiting");
  });
}

for (const [fields, message] of [
  [{}, /name/],
  [{ name: "a b" }, /name/],
  [{ name: "other/x" }, /name.*namespace/],
  [{ name: "x", tags: ["a b"] }, /tags/],
  [{ name: "x", tags: ["11111111-2222-3333-4444-555555555555"] }, /tags/],
  [{ name: "x", cpuCount: 0 }, /^validation error: cpuCount/],
  [{ name: "x", cpuCount: 3 }, /^CPU count must be 1 or an even number/],
  [{ name: "x", cpuCount: 34 }, /^CPU count must be at most 32/],
  [{ name: "x", memoryMB: 64 }, /^validation error: memoryMB/],
  [{ name: "x", memoryMB: 513 }, /^Memory must be divisible by 2/],
  [{ name: "x", memoryMB: 10_000_000 }, /^Memory can't be higher than 65536/],
  [{ name: "x", minFreeDiskMb: 10_000_000 }, /minFreeDiskMb/],
] as const) {
  test(`a new template refuses ${JSON.stringify(fields)} and makes none`, async () => {
    const { status, body } = await api.call("POST", "/v3/templates", fields);
    assert.equal(status, 400);
    assert.match(body.message, message);
    assert.deepEqual((await api.call("GET", "/templates")).body, []);
  });
}

test("builds that are not there: 400 for the build, 404 for the template", async () => {
  await api.publish("x");
  assert.equal((await api.call("GET", "/templates/x/builds/nope/status")).status, 400);
  assert.equal((await api.call("GET", "/templates/nope/builds/nope/status")).status, 404);
  assert.equal((await api.call("POST", "/v2/templates/x/builds/nope", { fromImage: "x" })).status, 400);
});

test("templates are listed, paged, shown with builds, and found by alias", async () => {
  const { templateID, buildID } = await api.publish("one");
  api.node.nowMs += 1000;
  await api.publish("two");
  await api.call("POST", "/sandboxes", { templateID: "one" });
  const { body: all } = await api.call("GET", "/templates?teamID=whatever");
  assert.deepEqual(
    all.map(({ names }: { names: string[] }) => names[0]),
    ["two", "one"],
  );
  assert.deepEqual(all[1], {
    templateID,
    buildID,
    public: false,
    aliases: ["one"],
    names: ["one"],
    createdAt: "2030-01-02T03:04:05.000Z",
    updatedAt: "2030-01-02T03:04:05.000Z",
    lastSpawnedAt: "2030-01-02T03:04:06.000Z",
    spawnCount: 1,
    cpuCount: 2,
    memoryMB: 1024,
    diskSizeMB: 10_240,
    buildCount: 1,
    createdBy: null,
    envdVersion: "0.5.2",
    buildStatus: "ready",
    lineage: { snapshot: [...api.node.snapshots.keys()][0] },
  });
  const first = await api.call("GET", "/v2/templates?limit=1");
  const token = first.headers.get("x-next-token");
  const second = await api.call("GET", `/v2/templates?limit=1&nextToken=${token}`);
  assert.deepEqual([first.body[0].names, second.body[0].names], [["two"], ["one"]]);
  assert.equal(second.headers.get("x-next-token"), null);

  const { body: shown } = await api.call("GET", "/templates/default%2Fone%3Adefault");
  assert.equal(shown.templateID, templateID);
  assert.deepEqual(
    shown.builds.map((build: Record<string, unknown>) => [build.buildID, build.status, build.tags]),
    [[buildID, "ready", ["default"]]],
  );
  const alias = async (name: string) => (await api.call("GET", `/templates/aliases/${name}`)).status;
  assert.deepEqual((await api.call("GET", "/templates/aliases/one")).body, { templateID, public: false });
  assert.deepEqual([await alias("nope"), await alias("one%3Anope"), await alias("one%3Adefault")], [404, 404, 200]);
  assert.equal((await api.call("GET", "/templates/nope")).status, 404);
  await api.publish("tags");
  assert.equal(await alias("tags"), 200);
});

test("a template is deleted by id or name, once, and not while it is used", async () => {
  const { templateID } = await api.publish("one");
  const { body } = await api.call("POST", "/sandboxes", { templateID: "one" });
  const used = await api.call("DELETE", "/templates/one");
  assert.deepEqual([used.status, used.body.code], [400, 400]);
  await api.call("DELETE", `/sandboxes/${body.sandboxID}`);
  assert.equal((await api.call("DELETE", `/templates/${templateID}`)).status, 204);
  assert.equal((await api.call("DELETE", `/templates/${templateID}`)).status, 404);
  assert.equal((await api.call("DELETE", "/templates/one")).status, 404);
  await api.publish("one:v1");
  assert.equal((await api.call("DELETE", "/templates/default%2Fone%3Av1")).status, 204);
  assert.equal(api.node.snapshots.size, 0);
});

test("a template deleted while it is built takes its builds along", async () => {
  const { body } = await api.call("POST", "/v3/templates", { name: "one" });
  const gate = api.node.holdNext("makeSnapshot");
  await api.call("POST", `/v2/templates/one/builds/${body.buildID}`, { fromImage: "debian:12" });
  await gate.entered;
  assert.equal((await api.call("DELETE", "/templates/one")).status, 204);
  assert.deepEqual([api.node.snapshots.size, api.node.held.size], [0, 0]);
  assert.equal((await api.call("GET", "/templates")).body.length, 0);
  const again = await api.call("POST", "/v3/templates", { name: "one" });
  assert.notEqual(again.body.templateID, body.templateID);
});

test("start and ready commands go to the node; empty ones are none", async () => {
  for (const commands of [
    { startCmd: " serve ", readyCmd: "check" },
    { startCmd: "", readyCmd: null },
  ]) {
    const { body } = await api.call("POST", "/v3/templates", { name: "started" });
    const path = `/templates/started/builds/${body.buildID}`;
    await api.call("POST", `/v2${path}`, { fromImage: "debian:12", steps: [], force: false, ...commands });
    while ((await api.call("GET", `${path}/status`)).body.status === "building") await new Promise(setImmediate);
  }
  assert.deepEqual(api.node.commands, [{ startCmd: "serve", readyCmd: "check" }, {}]);
});

test("tags: assigned as asked, listed, removed by a DELETE with a body", async () => {
  const { buildID } = await api.publish("one");
  const assigned = await api.call("POST", "/templates/tags", { target: "one:default", tags: ["Prod", "v2"] });
  assert.deepEqual([assigned.status, assigned.body], [201, { tags: ["Prod", "v2"], buildID }]);
  const { body: tags } = await api.call("GET", "/templates/one/tags");
  assert.deepEqual(
    tags.map(({ tag, buildID: id }: { tag: string; buildID: string }) => [tag, id]),
    ["default", "prod", "v2"].map((tag) => [tag, buildID]),
  );
  assert.match(tags[0].createdAt, /^2030-.*Z$/);
  assert.equal((await api.call("DELETE", "/templates/tags", { name: "one", tags: ["prod"] })).status, 204);
  assert.equal((await api.call("GET", "/templates/one/tags")).body.length, 2);
  for (const [method, body, status, message] of [
    ["POST", { target: "nope", tags: ["a"] }, 404, /nope/],
    ["POST", { target: "one:nope", tags: ["a"] }, 404, /tag 'nope'/],
    ["POST", { target: "one", tags: ["a b"] }, 400, /tags/],
    ["POST", { target: "one", tags: [] }, 400, /tags/],
    ["POST", { tags: ["a"] }, 400, /target/],
    ["DELETE", { name: "one", tags: ["default"] }, 400, /default/],
    ["DELETE", { name: "one:v2", tags: ["v2"] }, 400, /name/],
    ["DELETE", { name: "one", tags: ["gone"] }, 404, /gone/],
    ["DELETE", {}, 400, /name/],
  ] as const) {
    const answer = await api.call(method, "/templates/tags", body);
    assert.equal(answer.status, status, JSON.stringify(body));
    assert.match(answer.body.message, message);
  }
});
