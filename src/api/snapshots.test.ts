import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { AenvError, sandboxNotFound } from "#domain";
import { TestApi } from "./testing.ts";

let api: TestApi;
beforeEach(async () => {
  api = new TestApi();
  await api.publish("base");
});

// biome-ignore lint/suspicious/noExplicitAny: tests look into answers of every shape
async function capture(id: string, body: unknown = {}): Promise<any> {
  api.node.nowMs += 1;
  const answer = await api.call("POST", `/sandboxes/${id}/snapshots`, body);
  assert.equal(answer.status, 201, answer.text);
  return answer.body;
}

// biome-ignore lint/suspicious/noExplicitAny: as above
async function list(query = ""): Promise<any[]> {
  const { status, body, text } = await api.call("GET", `/snapshots${query}`);
  assert.equal(status, 200, text);
  return body;
}

function remove(id: string): Promise<number> {
  return api.call("DELETE", `/templates/${encodeURIComponent(id)}`).then(({ status }) => status);
}

test("without a name: an id of its own, tag default, no names; a create starts from it", async () => {
  const id = await api.create({ envVars: { A: "1", B: "2" }, metadata: { m: "1" } });
  const made = await capture(id);
  assert.match(made.snapshotID, /^[a-z0-9]{20}:default$/);
  assert.deepEqual([made.names, made.snapshotID], [[], `${made.templateID}:default`]);
  const child = await api.create({ templateID: made.snapshotID, envVars: { A: "3" } });
  const { templateID, lineage, metadata } = (await api.call("GET", `/sandboxes/${child}`)).body;
  assert.deepEqual([templateID, metadata], [made.templateID, {}]);
  assert.deepEqual(lineage, { snapshot: made.lineage.snapshot });
});

test("a child has the template's variables and its own, nothing of the captured one's (SNAP-07)", async () => {
  const id = await api.create({ envVars: { A: "1", B: "2" } });
  const { snapshotID } = await capture(id, { name: "kept" });
  const child = await api.create({ templateID: snapshotID, envVars: { A: "3" } });
  const grandchild = await api.create({ templateID: (await capture(child)).snapshotID });
  const envOf = (of: string) => api.node.sandboxes.get(of)?.spec.env;
  assert.deepEqual(envOf(child), { PATH: "/bin", A: "3" });
  assert.deepEqual(envOf(grandchild), { PATH: "/bin" });
  const posing = { templateID: snapshotID, envVars: { E2B_SANDBOX_ID: id } };
  assert.equal((await api.call("POST", "/v2/sandboxes", posing)).status, 400);
});

test("with a name: under the team, in lower case, by its tag", async () => {
  const id = await api.create();
  const plain = await capture(id, { name: " Mine " });
  assert.deepEqual([plain.snapshotID, plain.names], ["default/mine:default", ["default/mine"]]);
  const tagged = await capture(id, { name: "default/mine:V1" });
  assert.deepEqual([tagged.snapshotID, tagged.names], ["default/mine:v1", ["default/mine"]]);
  assert.equal(tagged.templateID, plain.templateID);
  for (const wrong of ["other/mine", "a b", "a:b:c"]) {
    assert.equal((await api.call("POST", `/sandboxes/${id}/snapshots`, { name: wrong })).status, 400, wrong);
  }
});

test("the same name again is the same template, and what comes next starts from the new one", async () => {
  const id = await api.create();
  const first = await capture(id, { name: "again" });
  const before = await api.create({ templateID: "again" });
  const second = await capture(id, { name: "again" });
  assert.equal(second.snapshotID, first.snapshotID);
  assert.equal(second.templateID, first.templateID);
  assert.notEqual(second.buildID, first.buildID);
  const after = await api.create({ templateID: first.snapshotID });
  const startedFrom = (of: string) => api.node.sandboxes.get(of)?.snapshotId;
  assert.deepEqual([startedFrom(before), startedFrom(after)], [first.lineage.snapshot, second.lineage.snapshot]);
  // The replaced one stays as long as somebody has it.
  assert.equal(api.node.snapshots.has(first.lineage.snapshot), true);
  await api.call("DELETE", `/sandboxes/${before}`);
  await capture(id, { name: "again" });
  assert.equal(api.node.snapshots.has(first.lineage.snapshot), false);
});

test("a template's name is refused to a snapshot, and the other way round, before anything is captured", async () => {
  const id = await api.create();
  const before = api.node.snapshots.size;
  const refused = await api.call("POST", `/sandboxes/${id}/snapshots`, { name: "base" });
  assert.deepEqual([refused.status, api.node.snapshots.size], [409, before]);
  await capture(id, { name: "mine" });
  assert.equal((await api.call("POST", "/v3/templates", { name: "mine" })).status, 409);
});

test("the list: newest first, one for each name; by sandbox, name, name and tag, id; unknown is none", async () => {
  const [one, two] = [await api.create(), await api.create()];
  const unnamed = await capture(one);
  const v1 = await capture(one, { name: "a:v1" });
  const v2 = await capture(two, { name: "a:v2" });
  const idsOf = async (query: string) => (await list(query)).map(({ snapshotID }) => snapshotID);
  assert.deepEqual(await idsOf(""), [v2.snapshotID, unnamed.snapshotID]);
  assert.deepEqual(await idsOf(`?sandboxID=${one}`), [v1.snapshotID, unnamed.snapshotID]);
  assert.deepEqual(await idsOf(`?sandboxID=${two}-00000000`), [v2.snapshotID]);
  assert.deepEqual(await idsOf("?name=a"), [v2.snapshotID]);
  assert.deepEqual(await idsOf("?name=default%2Fa%3Av1"), [v1.snapshotID]);
  assert.deepEqual(await idsOf(`?name=${unnamed.templateID}`), [unnamed.snapshotID]);
  for (const none of [
    "?name=base",
    "?name=b",
    "?name=a%3Av3",
    "?sandboxID=i0000000000000000000",
    `?name=a&sandboxID=x`,
  ]) {
    assert.deepEqual(await idsOf(none), [], none);
  }
  await api.call("POST", "/templates/tags", { target: "a:v2", tags: ["default"] });
  assert.deepEqual((await list("?name=a"))[0].tags, ["default", "v2"]);
  assert.equal((await api.call("GET", "/snapshots?limit=0")).status, 400);
});

test("pages show each once, whatever is captured meanwhile", async () => {
  const id = await api.create();
  for (const name of ["p1", "p2", "p3", "p4", "p5"]) await capture(id, { name });
  const seen: string[] = [];
  for (let token: string | null | undefined; token !== null; ) {
    const { body, headers } = await api.call("GET", `/snapshots?limit=2${token ? `&nextToken=${token}` : ""}`);
    seen.push(...body.map(({ names }: { names: string[] }) => names[0]));
    token = headers.get("X-Next-Token");
    await capture(id, { name: "p1" });
    await capture(id);
  }
  assert.deepEqual(
    seen,
    ["p5", "p4", "p3", "p2", "p1"].map((name) => `default/${name}`),
  );
});

test("snapshots are no templates in lists of templates; by name they are found, with where they come from", async () => {
  const id = await api.create();
  const { snapshot: of } = (await api.call("GET", `/sandboxes/${id}`)).body.lineage;
  const made = await capture(id, { name: "mine" });
  for (const path of ["/templates", "/v2/templates"]) {
    const names = (await api.call("GET", path)).body.map(({ names: each }: { names: string[] }) => each);
    assert.deepEqual(names, [["base"]], path);
  }
  const { builds } = (await api.call("GET", "/templates/mine")).body;
  assert.deepEqual(builds[0].lineage, { snapshot: made.lineage.snapshot, parent: of, sandboxID: id });
  const base = (await api.call("GET", "/templates/base")).body;
  assert.deepEqual(base.builds[0].lineage, { snapshot: of });
});

test("a fork says whose it is", async () => {
  const id = await api.create();
  const [{ sandbox }] = (await api.call("POST", `/sandboxes/${id}/fork`, {})).body;
  const { lineage } = (await api.call("GET", `/sandboxes/${sandbox.sandboxID}`)).body;
  assert.equal(lineage.forkedFrom, id);
});

test("a delete: once, and not while sandboxes use it; those of other snapshots and its origin do not count", async () => {
  const id = await api.create();
  const made = await capture(id);
  const child = await api.create({ templateID: made.snapshotID });
  const ofChild = await capture(child);
  assert.equal(await remove(made.snapshotID), 400);
  await api.call("DELETE", `/sandboxes/${child}`);
  assert.equal(await remove(made.snapshotID), 204);
  assert.equal(await remove(made.snapshotID), 404);
  assert.equal(api.node.snapshots.has(made.lineage.snapshot), false);
  assert.equal((await api.call("POST", "/v2/sandboxes", { templateID: made.snapshotID })).status, 404);
  await api.create({ templateID: ofChild.snapshotID });
});

test("a delete by name and tag takes that tag alone; without a tag, all", async () => {
  const id = await api.create();
  const [v1, v2] = [await capture(id, { name: "a:v1" }), await capture(id, { name: "a:v2" })];
  const child = await api.create({ templateID: v1.snapshotID });
  assert.equal(await remove(v1.snapshotID), 400);
  await api.call("DELETE", `/sandboxes/${child}`);
  assert.equal(await remove(v1.snapshotID), 204);
  assert.equal(await remove(v1.snapshotID), 404);
  assert.equal(api.node.snapshots.has(v1.lineage.snapshot), false);
  assert.equal(api.node.snapshots.has(v2.lineage.snapshot), true);
  assert.equal((await api.call("DELETE", "/templates/tags", { name: "a", tags: ["v2"] })).status, 400);
  assert.equal(await remove("a"), 204);
  assert.deepEqual(await list(), []);
});

test("of two at once, of a paused and of an unknown sandbox: 409, 409, 404, and nothing half made", async () => {
  const id = await api.create();
  api.node.setState(id, "snapshotting");
  assert.equal((await api.call("POST", `/sandboxes/${id}/snapshots`, {})).status, 409);
  api.node.setState(id, "paused");
  assert.equal((await api.call("POST", `/sandboxes/${id}/snapshots`, { name: "x" })).status, 409);
  assert.equal((await api.call("POST", "/sandboxes/i0000000000000000000/snapshots", {})).status, 404);
  assert.equal((await api.call("GET", "/templates/x")).status, 404);
  assert.deepEqual(await list(), []);
});

test("one that fails, or whose sandbox is killed meanwhile, leaves nothing", async () => {
  const id = await api.create();
  const before = [...api.node.snapshots.keys()];
  for (const [error, status] of [
    [new AenvError("unavailable", "no disk"), 503],
    [sandboxNotFound(id), 404],
  ] as const) {
    api.node.failNext("snapshot", error);
    assert.equal((await api.call("POST", `/sandboxes/${id}/snapshots`, { name: "x" })).status, status);
  }
  assert.deepEqual([...api.node.snapshots.keys()], before);
  assert.equal((await api.call("GET", "/templates/x")).status, 404);
});

test("with `memory: false` the files alone are captured, and what is listed says so", async () => {
  const id = await api.create();
  const alone = await capture(id, { memory: false, name: "alone" });
  const whole = await capture(id, { memory: true, name: null });
  assert.deepEqual([alone.memory, whole.memory], [false, true]);
  const captures = [...api.node.snapshots.values()].map((snapshot) => snapshot.capture);
  assert.deepEqual(captures.slice(-2), ["disk", undefined]);
  const listed = (await api.call("GET", "/snapshots")).body;
  assert.deepEqual(listed.map((row: { memory: boolean }) => row.memory).sort(), [false, true]);
});
