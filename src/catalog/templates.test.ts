import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { DEFAULT_RESOURCES, newBuildId, type Snapshot } from "#domain";
import { MemoryCatalog } from "./memory.ts";
import { buildTags, parseReference } from "./reference.ts";
import { type BuildRecord, Templates } from "./templates.ts";

let templates: Templates;
let nowMs: number;
beforeEach(() => {
  nowMs = 1_000;
  templates = new Templates(new MemoryCatalog(), () => nowMs);
});

async function readyBuild(name: string, ...tags: string[]): Promise<BuildRecord> {
  nowMs += 1;
  const { id: templateId } = await templates.claim(name);
  const id = newBuildId();
  const snapshot = { id: `snap-${id}` } as Snapshot;
  const build = { id, templateId, status: "ready" as const, resources: DEFAULT_RESOURCES, createdAtMs: nowMs, tags };
  await templates.addBuild({ ...build, snapshot });
  assert.equal(await templates.publish({ ...build, snapshot }), true);
  return { ...build, snapshot };
}

test("references: lower-cased, own namespace dropped, the rest refused by field", () => {
  assert.deepEqual(parseReference(" Base ", "f"), { name: "base" });
  assert.deepEqual(parseReference("default/py:V1.2", "f"), { name: "py", tag: "v1.2" });
  for (const bad of ["", "other/base", "a b", "a:", "a:b:c", "a/b/c", "a:11111111-2222-3333-4444-555555555555"]) {
    assert.throws(() => parseReference(bad, "f"), { kind: "invalid", field: "f", message: /^f: / });
  }
  assert.deepEqual(buildTags({ name: "a", tag: "v1" }, ["b", "v1"]), ["v1", "b"]);
  assert.deepEqual(buildTags({ name: "a" }, []), ["default"]);
});

test("a template is found by name, id and tag; what is missing is named", async () => {
  const build = await readyBuild("base", "default", "v1");
  for (const text of ["base", "Base:v1", "default/base", build.templateId, `${build.templateId}:v1`]) {
    const resolved = await templates.resolve(text);
    assert.equal(resolved.build.id, build.id);
    assert.equal(resolved.alias, "base");
  }
  await assert.rejects(templates.resolve("nope"), { kind: "not-found", message: "template 'nope' not found" });
  for (const tag of ["v2", "constructor", "__proto__"]) {
    await assert.rejects(templates.resolve(`base:${tag}`), {
      kind: "not-found",
      message: `tag '${tag}' does not exist for template 'base'`,
    });
  }
});

test("the newest build under a tag wins and the one before is dead", async () => {
  const first = await readyBuild("base", "default");
  const second = await readyBuild("base", "default");
  assert.equal((await templates.resolve("base")).build.id, second.id);
  assert.deepEqual(
    (await templates.deadBuilds()).map(({ id }) => id),
    [first.id],
  );
});

test("tags: assigned together, removed together, default stays", async () => {
  const build = await readyBuild("base", "default");
  assert.equal(await templates.assignTags("base", ["a", "__proto__"]), build.id);
  assert.equal((await templates.resolve("base:__proto__")).build.id, build.id);
  await assert.rejects(templates.removeTags("base", ["a", "zz"]), { kind: "not-found" });
  assert.equal((await templates.resolve("base:a")).build.id, build.id);
  await templates.removeTags("base", ["a"]);
  await assert.rejects(templates.resolve("base:a"), { kind: "not-found" });
  await assert.rejects(templates.removeTags("base", ["default"]), { kind: "invalid" });
  await assert.rejects(templates.removeTags("base:a", ["a"]), { kind: "invalid" });
  await assert.rejects(templates.assignTags("base:zz", ["b"]), { kind: "not-found" });
  await assert.rejects(templates.assignTags("nope", ["b"]), { kind: "not-found" });
});

test("a name is claimed once, however many ask", async () => {
  const claimed = await Promise.all(Array.from({ length: 8 }, () => templates.claim("base")));
  assert.equal(new Set(claimed.map(({ id }) => id)).size, 1);
  assert.equal((await templates.list()).length, 1);
});

test("a removed template frees its name, and its builds are dead", async () => {
  const build = await readyBuild("base", "default");
  const template = await templates.find("base");
  assert.ok(template);
  assert.equal(await templates.remove(template), true);
  assert.equal(await templates.remove(template), false);
  assert.equal(await templates.find("base"), undefined);
  assert.deepEqual(
    (await templates.deadBuilds()).map(({ id }) => id),
    [build.id],
  );
  assert.equal(await templates.publish(build), false);
  assert.notEqual((await templates.claim("base")).id, build.templateId);
});

test("what a crash left of a claim or a removal is cleared, the rest stays", async () => {
  const catalog = new MemoryCatalog();
  templates = new Templates(catalog, () => nowMs);
  const kept = await readyBuild("kept", "default");
  const halfClaimed = await templates.claim("half");
  const halfRemoved = await templates.claim("removed");
  const kind = <T>(name: string) => ({ name, decode: (json: unknown) => json as T });
  await catalog.delete(kind("template-name"), "half");
  await catalog.delete(kind("template"), halfRemoved.id);
  await templates.removeOrphans();
  assert.deepEqual(
    (await templates.list()).map(({ id }) => id),
    [kept.templateId],
  );
  assert.notEqual(halfClaimed.id, kept.templateId);
  assert.equal(await catalog.get(kind("template-name"), "removed"), undefined);
  assert.equal((await templates.resolve("kept")).build.id, kept.id);
});

test("spawns are counted when many happen at once", async () => {
  const { templateId } = await readyBuild("base", "default");
  await Promise.all(Array.from({ length: 50 }, () => templates.countSpawn(templateId)));
  const template = await templates.find(templateId);
  assert.equal(template?.spawnCount, 50);
  assert.equal(template?.lastSpawnedAtMs, nowMs);
});

test("names of templates and of snapshots are apart; what a crash leaves of a snapshot goes", async () => {
  await readyBuild("base", "default");
  await assert.rejects(templates.claim("base", "snapshot"), { kind: "conflict" });
  const { id } = await templates.claim("mine", "snapshot");
  await assert.rejects(templates.claim("mine"), { kind: "conflict" });
  await templates.addUnnamedSnapshot();
  await templates.removeOrphans();
  assert.deepEqual(
    (await templates.list()).map(({ names }) => names),
    [["base"]],
  );
  assert.notEqual((await templates.claim("mine", "snapshot")).id, id);
});
