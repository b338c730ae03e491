import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { TestApi } from "./testing.ts";

let api: TestApi;
beforeEach(async () => {
  api = new TestApi();
  await api.publish("base");
});

/** Ids listed by a query, as `names` gives them. */
async function listed(query: string, names: ReadonlyMap<string, string>): Promise<string[]> {
  const { status, body } = await api.call("GET", `/v2/sandboxes${query}`);
  assert.equal(status, 200, JSON.stringify(body));
  return body.map(({ sandboxID }: { sandboxID: string }) => names.get(sandboxID));
}

async function three(): Promise<Map<string, string>> {
  const names = new Map<string, string>();
  for (const name of ["a", "b", "c"]) {
    names.set(await api.create({ metadata: { name, "k y": "v&1=%" } }), name);
    api.node.nowMs += 1000;
  }
  const [, b = ""] = names.keys();
  await api.call("POST", `/sandboxes/${b}/pause`);
  return names;
}

test("v1 lists the running ones, newest first, in a bare array", async () => {
  const names = await three();
  const { body, headers } = await api.call("GET", "/sandboxes");
  assert.deepEqual(
    body.map(({ sandboxID }: { sandboxID: string }) => names.get(sandboxID)),
    ["c", "a"],
  );
  assert.equal(headers.get("x-next-token"), null);
  assert.equal((await api.call("GET", "/sandboxes?metadata=name%3Da")).body.length, 1);
});

test("v2 filters by state, start, template and metadata, and orders", async () => {
  const names = await three();
  const other = await api.publish("other");
  for (const [query, expected] of [
    ["", ["c", "b", "a"]],
    ["?state=running,paused", ["c", "b", "a"]],
    ["?state=running%2Cpaused&order=asc", ["a", "b", "c"]],
    ["?state=paused", ["b"]],
    ["?state=running&state=paused", ["c", "b", "a"]],
    ["?startedAfter=2030-01-02T03:04:06.000Z", ["c", "b"]],
    ["?startedAfter=2030-01-02T04:04:06%2B01:00", ["c", "b"]],
    ["?template=base", ["c", "b", "a"]],
    ["?template=nope", []],
    [`?template=${other.templateID}`, []],
    ["?metadata=name%3Db", ["b"]],
    // As the SDKs send it, each layer encoded once more.
    ["?metadata=k%252520y%3Dv%25252526", []],
    ["?metadata=k%252520y%3Dv%2525261%25253D%252525", ["c", "b", "a"]],
    ["?metadata=k%252520y%3Dv%2525261%25253D%252525%26name%3Da", ["a"]],
    ["?metadata=toString%3D", []],
  ] as const) {
    assert.deepEqual(await listed(query, names), expected, query);
  }
});

for (const [query, field] of [
  ["?state=stopped", "state"],
  ["?limit=0", "limit"],
  ["?limit=101", "limit"],
  ["?limit=x", "limit"],
  ["?nextToken=garbage", "nextToken"],
  ["?startedAfter=yesterday", "startedAfter"],
  ["?order=up", "order"],
  ["?metadata=%25%25", "metadata"],
] as const) {
  test(`v2 refuses ${query} by field`, async () => {
    const { status, body } = await api.call("GET", `/v2/sandboxes${query}`);
    assert.equal(status, 400);
    assert.ok(body.message.includes(field), body.message);
  });
}

for (const order of ["asc", "desc"]) {
  test(`pages (${order}) neither repeat nor miss what was there, whatever comes and goes`, async () => {
    const before = new Set<string>();
    // Several share a millisecond: the id then decides.
    for (let n = 0; n < 7; n += 1) {
      before.add(await api.create());
      if (n % 3 === 2) api.node.nowMs += 1000;
    }
    const seen: string[] = [];
    let token = "";
    do {
      const { body, headers } = await api.call("GET", `/v2/sandboxes?limit=2&order=${order}&nextToken=${token}`);
      assert.equal(headers.get("x-total-running"), String(api.node.sandboxes.size));
      for (const { sandboxID } of body) seen.push(sandboxID);
      token = headers.get("x-next-token") ?? "";
      api.node.nowMs += 1000;
      await api.create();
      // The one a token names may be gone by the next page.
      await api.call("DELETE", `/sandboxes/${seen.at(-1)}`);
    } while (token !== "" && seen.length < 20);
    const old = seen.filter((id) => before.has(id));
    assert.equal(new Set(seen).size, seen.length);
    assert.deepEqual(new Set(old), before);
  });
}

test("the running ones are counted by the filters, not by state or page", async () => {
  await three();
  const total = async (query: string) =>
    (await api.call("GET", `/v2/sandboxes${query}`)).headers.get("x-total-running");
  assert.equal(await total("?limit=1"), "2");
  assert.equal(await total("?state=paused"), "2");
  assert.equal(await total("?metadata=name%3Da"), "1");
});
