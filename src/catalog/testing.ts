import assert from "node:assert/strict";
import { test } from "node:test";
import { type Catalog, type CatalogChange, recordKind, updateRecord, WATCH_BACKLOG } from "./catalog.ts";

interface Thing {
  readonly n: number;
  readonly text?: string | undefined;
}
const THING = recordKind<Thing>("thing", ["n"]);
const OTHER = recordKind<Thing>("other", ["n"]);

/** What every catalog does. `open` makes an empty one; the suite closes it. */
export function catalogSuite(name: string, open: () => Promise<Catalog>): void {
  const check = (what: string, body: (catalog: Catalog) => Promise<void>): void => {
    test(`${name}: ${what}`, async () => {
      const catalog = await open();
      try {
        await body(catalog);
      } finally {
        await catalog.close();
      }
    });
  };

  check("what is put is read back, kinds apart", async (catalog) => {
    const revision = await catalog.put(THING, "a/'ü%_", { n: 1, text: undefined });
    assert.deepEqual(await catalog.get(THING, "a/'ü%_"), { key: "a/'ü%_", value: { n: 1 }, revision });
    assert.equal(await catalog.get(OTHER, "a/'ü%_"), undefined);
    assert.equal(await catalog.get(THING, "a"), undefined);
  });

  check("a stored value is not the caller's object", async (catalog) => {
    const value = { n: 1 };
    await catalog.put(THING, "a", value);
    value.n = 2;
    assert.equal((await catalog.get(THING, "a"))?.value.n, 1);
  });

  check("put holds to the revision it was told", async (catalog) => {
    const first = await catalog.put(THING, "a", { n: 1 }, { ifRevision: 0 });
    assert.ok(first !== undefined && first > 0);
    assert.equal(await catalog.put(THING, "a", { n: 2 }, { ifRevision: 0 }), undefined);
    const second = await catalog.put(THING, "a", { n: 2 }, { ifRevision: first, durable: true });
    assert.ok(second !== undefined && second > first);
    assert.equal(await catalog.put(THING, "a", { n: 3 }, { ifRevision: first }), undefined);
    assert.equal((await catalog.get(THING, "a"))?.value.n, 2);
  });

  check("delete holds to the revision, and revisions never come back", async (catalog) => {
    const first = (await catalog.put(THING, "a", { n: 1 })) ?? 0;
    assert.equal(await catalog.delete(THING, "a", { ifRevision: first + 1 }), false);
    assert.equal(await catalog.delete(THING, "a", { ifRevision: first, durable: true }), true);
    assert.equal(await catalog.delete(THING, "a"), false);
    const again = (await catalog.put(THING, "a", { n: 1 }, { ifRevision: 0 })) ?? 0;
    assert.ok(again > first);
  });

  check("list is ordered and keeps to the prefix", async (catalog) => {
    for (const key of ["b/2", "b/10", "B/1", "b%", "c", "b"]) await catalog.put(THING, key, { n: 1 });
    const keys = async (prefix?: string) =>
      (await catalog.list(THING, prefix === undefined ? {} : { prefix })).map(({ key }) => key);
    assert.deepEqual(await keys(), ["B/1", "b", "b%", "b/10", "b/2", "c"]);
    assert.deepEqual(await keys("b/"), ["b/10", "b/2"]);
    assert.deepEqual(await keys("b%"), ["b%"]);
    assert.deepEqual(await catalog.list(OTHER), []);
  });

  check("concurrent updates of one record all count", async (catalog) => {
    await catalog.put(THING, "a", { n: 0 });
    await Promise.all(
      Array.from({ length: 20 }, () => updateRecord(catalog, THING, "a", (value) => ({ n: value.n + 1 }))),
    );
    assert.equal((await catalog.get(THING, "a"))?.value.n, 20);
    assert.equal(await updateRecord(catalog, THING, "missing", (value) => value), undefined);
  });

  check("watch tells each change from the call on, in order, until the signal", async (catalog) => {
    await catalog.put(THING, "before", { n: 0 });
    const end = new AbortController();
    const changes = catalog.watch(THING, end.signal);
    const revision = await catalog.put(THING, "a", { n: 1 });
    await catalog.put(OTHER, "a", { n: 9 });
    await catalog.put(THING, "a", { n: 2 }, { ifRevision: 0 });
    await catalog.delete(THING, "a");
    const seen: CatalogChange<Thing>[] = [];
    for await (const change of changes) {
      seen.push(change);
      if (change.type === "delete") end.abort();
    }
    assert.deepEqual(
      seen.map((change) => (change.type === "put" ? change.record : change.key)),
      [{ key: "a", value: { n: 1 }, revision }, "a"],
    );
  });

  check("a watcher that waits is woken by a change and ended by close", async (catalog) => {
    const seen: string[] = [];
    const reader = (async () => {
      for await (const change of catalog.watch(THING, new AbortController().signal)) seen.push(change.type);
    })();
    await new Promise(setImmediate);
    await catalog.put(THING, "a", { n: 1 });
    await new Promise(setImmediate);
    assert.deepEqual(seen, ["put"]);
    await catalog.close();
    await reader;
    await assert.rejects(catalog.get(THING, "a"), { kind: "unavailable" });
  });

  check("a watcher too far behind is told so", async (catalog) => {
    const changes = catalog.watch(THING, new AbortController().signal);
    for (let n = 0; n <= WATCH_BACKLOG; n += 1) await catalog.put(THING, "a", { n });
    let seen = 0;
    await assert.rejects(
      async () => {
        for await (const _ of changes) seen += 1;
      },
      { kind: "unavailable" },
    );
    assert.equal(seen, WATCH_BACKLOG);
  });
}
