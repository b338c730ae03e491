import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { after, test } from "node:test";
import { recordKind } from "./catalog.ts";
import { MemoryCatalog } from "./memory.ts";
import { SqliteCatalog } from "./sqlite.ts";
import { catalogSuite } from "./testing.ts";

const dir = await mkdtemp(join(tmpdir(), "aenv-catalog-"));
after(() => rm(dir, { recursive: true }));
let files = 0;
const newPath = (): string => {
  files += 1;
  return join(dir, `${files}.db`);
};

catalogSuite("memory", async () => new MemoryCatalog());
catalogSuite("sqlite", async () => new SqliteCatalog(newPath()));

const THING = recordKind<{ n: number }>("thing", ["n"]);

test("sqlite: records and the revision counter outlive the process", async () => {
  const path = newPath();
  const first = new SqliteCatalog(path);
  await first.put(THING, "a", { n: 1 });
  const last = (await first.put(THING, "b", { n: 2 })) ?? 0;
  await first.delete(THING, "b");
  await first.close();
  const second = new SqliteCatalog(path);
  assert.equal((await second.get(THING, "a"))?.value.n, 1);
  assert.equal(await second.get(THING, "b"), undefined);
  assert.ok(((await second.put(THING, "b", { n: 3 })) ?? 0) > last);
  await second.close();
});

test("sqlite: a file of a newer format and a file that is no database are refused and left alone", async () => {
  const newer = newPath();
  const db = new DatabaseSync(newer);
  db.exec("PRAGMA user_version = 99");
  db.close();
  assert.throws(() => new SqliteCatalog(newer), { kind: "invalid", message: /format 99/ });
  assert.throws(() => new SqliteCatalog(join(dir, "missing", "x.db")), { kind: "unavailable" });
});

test("sqlite: a stored record of the wrong shape is an error that names its kind", async () => {
  const catalog = new SqliteCatalog(newPath());
  await catalog.put(recordKind<{ m: number }>("thing", ["m"]), "a", { m: 1 });
  await assert.rejects(catalog.get(THING, "a"), /stored thing record has no field n/);
  await catalog.close();
});
