import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { AenvError } from "#domain";
import { TestApi } from "./testing.ts";

let api: TestApi;
let templateID: string;
beforeEach(async () => {
  api = new TestApi();
  ({ templateID } = await api.publish("base"));
});

test("create v1: 15 s, unsecured unless asked; every key clients need", async () => {
  const { status, body } = await api.call("POST", "/sandboxes", { templateID: "base" });
  assert.equal(status, 201);
  assert.match(body.sandboxID, /^i[a-z0-9]{19}$/);
  const { sandboxID } = body;
  const rest = { clientID: "00000000", envdVersion: "0.5.2", alias: "base", trafficAccessToken: null, domain: null };
  assert.deepEqual(body, { templateID, sandboxID, ...rest });
  const sandbox = api.node.get(sandboxID);
  assert.equal(sandbox?.endAtMs, api.node.nowMs + 15_000);
  const secured = await api.call("POST", "/sandboxes", { templateID, secure: true });
  assert.equal(secured.body.envdAccessToken, api.node.get(secured.body.sandboxID)?.accessToken);
  assert.ok(secured.body.envdAccessToken);
});

test("create v2: 300 s, secured, and the fields arrive", async () => {
  const id = await api.create({ metadata: { user: "x" }, envVars: { A: "1" } });
  assert.equal(api.node.get(id)?.endAtMs, api.node.nowMs + 300_000);
  assert.ok(api.node.get(id)?.accessToken);
  const other = await api.create({
    timeout: 60,
    allow_internet_access: false,
    autoPause: true,
    autoResume: { enabled: true },
    mcp: { server: { option: [1] } },
  });
  const spec = api.node.get(other)?.spec;
  assert.equal(spec?.timeoutMs, 60_000);
  assert.deepEqual(spec?.network, { internet: false });
  assert.equal(spec?.onTimeout, "pause");
  assert.equal(spec?.autoResume, true);
  assert.equal(api.node.get(id)?.spec.env.A, "1");
});

test("create takes what SDKs send for nothing, and unknown fields", async () => {
  const empty = {
    timeout: null,
    metadata: null,
    envVars: {},
    mcp: null,
    autoPause: null,
    autoResume: null,
    iam: { tokens: {} },
  };
  const network = {
    allowOut: [],
    denyOut: [],
    rules: {},
    egressProxy: null,
    maskRequestHost: "",
    allowPublicTraffic: true,
  };
  await api.create({
    ...empty,
    network,
    volumeMounts: [],
    autoPauseMemory: true,
    allow_internet_access: null,
    newThing: 1,
  });
});

for (const [field, value] of [
  ["network.allowOut", { network: { allowOut: ["1.1.1.1"] } }],
  ["network.denyOut", { network: { denyOut: ["0.0.0.0/0"] } }],
  ["network.rules", { network: { rules: { "a.com": [] } } }],
  ["network.egressProxy", { network: { egressProxy: { address: "a:1" } } }],
  ["network.httpsPorts", { network: { httpsPorts: [443] } }],
  ["volumeMounts", { volumeMounts: [{ name: "a", path: "/a" }] }],
  ["iam.tokens", { iam: { tokens: { a: { audience: "b", tokenType: "JWT-SVID" } } } }],
] as const) {
  test(`create refuses ${field}, which is not built, and makes nothing`, async () => {
    for (const path of ["/sandboxes", "/v2/sandboxes"]) {
      const { status, body } = await api.call("POST", path, { templateID: "base", ...value });
      const isFeature = field.startsWith("network.") || field === "volumeMounts";
      assert.equal(status, isFeature ? 403 : 400);
      const end = isFeature ? "is not enabled" : "is not supported yet";
      assert.ok(body.message.startsWith(field) && body.message.endsWith(end), body.message);
    }
    assert.equal(api.node.sandboxes.size, 0);
  });
}

for (const [what, fields, message] of [
  ["no template", { templateID: undefined }, /templateID/],
  ["an empty template", { templateID: "" }, /templateID/],
  ["an odd template", { templateID: "a b" }, /templateID/],
  ["another team's template", { templateID: "other/base" }, /templateID.*namespace/],
  ["a wrong type", { timeout: "60" }, /^validation error: timeout: /],
  ["a fraction", { timeout: 1.5 }, /^validation error: timeout: /],
  ["no time", { timeout: 0 }, /timeout/],
  ["negative time", { timeout: -1 }, /timeout/],
  ["too much time", { timeout: 86_401 }, /^Timeout cannot be greater than 24 hours$/],
  ["metadata that is no text", { metadata: { a: 1 } }, /metadata\.a/],
  ["an impossible variable", { envVars: { "A=B": "1" } }, /envVars.*A=B/],
  ["a NUL in a variable", { envVars: { A: "\0" } }, /envVars.*NUL/],
  ["a mask that is no host", { network: { maskRequestHost: "a b" } }, /network\.maskRequestHost/],
  ["a mask with a path", { network: { maskRequestHost: "a/b" } }, /network\.maskRequestHost/],
  ["a mask of two lines", { network: { maskRequestHost: "a\r\nX-Api-Key: b" } }, /network\.maskRequestHost/],
  ["a wrong mcp", { mcp: "server" }, /^validation error: mcp: /],
  ["a wrong network", { network: { allowPublicTraffic: "no" } }, /network\.allowPublicTraffic/],
] as const) {
  test(`create refuses ${what} by field`, async () => {
    const { status, body } = await api.call("POST", "/v2/sandboxes", { templateID: "base", ...fields });
    assert.equal(status, 400);
    assert.equal(body.code, 400);
    assert.match(body.message, message);
  });
}

test("create says which of template and tag is missing", async () => {
  const template = await api.call("POST", "/sandboxes", { templateID: "nope" });
  assert.deepEqual([template.status, template.body], [404, { code: 404, message: "template 'nope' not found" }]);
  const tag = await api.call("POST", "/sandboxes", { templateID: "base:v9" });
  assert.deepEqual([tag.status, tag.body.message], [404, "tag 'v9' does not exist for template 'base'"]);
});

for (const [kind, status] of [
  ["exhausted", 429],
  ["unavailable", 503],
  ["deadline", 504],
  ["forbidden", 403],
  ["internal", 500],
] as const) {
  test(`a node's ${kind} is ${status}`, async () => {
    api.node.failNext("create", new AenvError(kind, "secret detail", { hint: "do this", code: "some_code" }));
    const { status: got, body, headers } = await api.call("POST", "/sandboxes", { templateID: "base" });
    assert.equal(got, status);
    assert.equal(body.code, status);
    assert.equal(headers.get("retry-after"), status === 429 ? "1" : null);
    if (kind !== "internal") assert.deepEqual([body.message, body.error_code], ["secret detail; do this", "some_code"]);
  });
}

test("a defect shows its request's id and nothing of itself; the log has it", async () => {
  api.node.failNext("create", new TypeError("secret detail"));
  const { status, body, headers } = await api.call("POST", "/sandboxes", { templateID: "base" });
  assert.equal(status, 500);
  assert.doesNotMatch(JSON.stringify(body), /secret/);
  assert.equal(body.requestId, headers.get("x-request-id"));
  const line = api.logged.find((each) => each.includes(body.requestId));
  assert.match(line ?? "", /secret detail/);
});

test("get shows running and paused ones; the token only while it runs", async () => {
  const id = await api.create({ metadata: { a: "b" }, timeout: 60, allow_internet_access: false });
  const { status, body } = await api.call("GET", `/sandboxes/${id}`);
  assert.equal(status, 200);
  assert.deepEqual(body, {
    templateID,
    sandboxID: id,
    clientID: "00000000",
    envdVersion: "0.5.2",
    alias: "base",
    startedAt: "2030-01-02T03:04:05.000Z",
    endAt: "2030-01-02T03:05:05.000Z",
    state: "running",
    cpuCount: 2,
    memoryMB: 1024,
    diskSizeMB: 10_240,
    metadata: { a: "b" },
    volumeMounts: [],
    lineage: { snapshot: api.node.get(id)?.snapshotId },
    envdAccessToken: api.node.get(id)?.accessToken,
    domain: null,
    allowInternetAccess: false,
    network: { allowPublicTraffic: true },
    lifecycle: { autoResume: false, onTimeout: "kill" },
  });
  assert.equal((await api.call("GET", `/sandboxes/${id}-00000000`)).body.sandboxID, id);
  for (const [state, shown] of [
    ["pausing", "paused"],
    ["paused", "paused"],
    ["resuming", "paused"],
    ["forking", "running"],
    ["snapshotting", "running"],
  ] as const) {
    api.node.setState(id, state);
    assert.equal((await api.call("GET", `/sandboxes/${id}`)).body.state, shown, state);
  }
  api.node.setState(id, "paused");
  assert.equal("envdAccessToken" in (await api.call("GET", `/sandboxes/${id}`)).body, false);
});

test("a paused one that the node does not keep for ever says when it is removed, alone and in lists", async () => {
  const id = await api.create();
  const sandbox = api.node.get(id);
  assert.ok(sandbox !== undefined);
  const removeAtMs = Date.parse("2030-02-02T00:00:00.000Z");
  api.node.sandboxes.set(id, { ...sandbox, state: "paused", removeAtMs });
  const { body } = await api.call("GET", `/sandboxes/${id}`);
  const listed = (await api.call("GET", "/v2/sandboxes")).body;
  assert.deepEqual([body.removeAt, listed[0].removeAt], Array(2).fill("2030-02-02T00:00:00.000Z"));
  api.node.sandboxes.set(id, sandbox);
  assert.equal("removeAt" in (await api.call("GET", `/sandboxes/${id}`)).body, false);
});

test("kill ends it once; then it is unknown, in E2B's words", async () => {
  const id = await api.create();
  assert.equal((await api.call("DELETE", `/sandboxes/${id}`)).status, 204);
  for (const [method, path] of [
    ["DELETE", ""],
    ["GET", ""],
    ["POST", "/timeout"],
    ["POST", "/pause"],
    ["POST", "/resume"],
    ["POST", "/connect"],
    ["POST", "/fork"],
    ["POST", "/refreshes"],
  ] as const) {
    const body =
      method === "POST" && path !== "/pause" && path !== "/fork" && path !== "/refreshes" ? { timeout: 1 } : undefined;
    const answer = await api.call(method, `/sandboxes/${id}${path}`, body);
    assert.equal(answer.status, 404, path);
    const message = `Sandbox "${id}" doesn't exist or you don't have access to it`;
    assert.deepEqual(answer.body, { code: 404, message });
  }
});

test("timeout sets the end, sooner too; negative is now; refreshes only extend", async () => {
  const id = await api.create({ timeout: 100 });
  const leftMs = () => (api.node.get(id)?.endAtMs ?? 0) - api.node.nowMs;
  const set = async (path: string, body?: unknown) => (await api.call("POST", `/sandboxes/${id}/${path}`, body)).status;
  assert.equal(await set("timeout", { timeout: 10 }), 204);
  assert.equal(leftMs(), 10_000);
  assert.equal(await set("refreshes", { duration: 5 }), 204);
  assert.equal(leftMs(), 10_000);
  assert.equal(await set("refreshes"), 204);
  assert.equal(leftMs(), 15_000);
  assert.equal(await set("timeout", { timeout: -5 }), 204);
  assert.equal(leftMs(), 0);
  assert.equal(await set("timeout", { timeout: 86_401 }), 400);
  assert.equal(await set("timeout", {}), 400);
  assert.equal(await set("refreshes", { duration: 3601 }), 400);
});

test("pause, resume and connect answer what clients decide by", async () => {
  const id = await api.create({ timeout: 100 });
  const post = (path: string, body?: unknown) => api.call("POST", path, body);
  const token = api.node.get(id)?.accessToken;

  const running = await post(`/v2/sandboxes/${id}/connect`, {});
  assert.deepEqual([running.status, running.body.envdAccessToken], [200, token]);
  assert.equal((await post(`/sandboxes/${id}/resume`)).status, 409);

  assert.equal((await post(`/sandboxes/${id}/pause`, "")).status, 204);
  const again = await post(`/sandboxes/${id}/pause`, {});
  assert.deepEqual([again.status, again.body.code], [409, 409]);
  assert.equal((await post(`/sandboxes/${id}/timeout`, { timeout: 5 })).status, 409);
  assert.equal((await post(`/sandboxes/${id}/fork`, {})).status, 409);

  assert.equal((await post(`/sandboxes/${id}/connect`, {})).status, 400);
  const woken = await post(`/sandboxes/${id}/connect`, { timeout: 300 });
  assert.deepEqual([woken.status, woken.body.envdAccessToken], [201, token]);
  assert.equal(api.node.get(id)?.endAtMs, api.node.nowMs + 300_000);
  await post(`/v2/sandboxes/${id}/connect`, { timeout: 10 });
  assert.equal(api.node.get(id)?.endAtMs, api.node.nowMs + 300_000);

  await post(`/sandboxes/${id}/pause`, { memory: true });
  assert.equal((await post(`/sandboxes/${id}/resume`, { timeout: 20 })).status, 201);
  assert.equal(api.node.get(id)?.endAtMs, api.node.nowMs + 20_000);
});

test("with memory: false a pause keeps the files alone, and whatever wakes it may boot it", async () => {
  const id = await api.create();
  const post = (path: string, body: unknown) => api.call("POST", path, body);
  assert.equal((await post(`/sandboxes/${id}/pause`, { memory: "no" })).status, 400);
  for (const path of [`/sandboxes/${id}/resume`, `/sandboxes/${id}/connect`, `/v2/sandboxes/${id}/connect`]) {
    for (const memory of [false, true, null]) {
      assert.equal((await post(`/sandboxes/${id}/pause`, { memory })).status, 204);
      assert.equal((await api.call("GET", `/sandboxes/${id}`)).body.state, "paused");
      assert.equal((await post(path, { memory, timeout: 5 })).status, 201);
    }
  }
  assert.deepEqual(api.node.captures, [
    "disk",
    "memory",
    "memory",
    "disk",
    "memory",
    "memory",
    "disk",
    "memory",
    "memory",
  ]);
  assert.deepEqual(api.node.reboots, [true, false, false, true, false, false, true, false, false]);
});

test("autoPauseMemory: false needs autoPause, excludes autoResume, and is kept", async () => {
  const create = (more: object) =>
    api.call("POST", "/sandboxes", { templateID: "base", autoPauseMemory: false, ...more });
  const alone = await create({});
  assert.deepEqual(
    [alone.status, alone.body.message],
    [400, "autoPauseMemory=false only applies when autoPause is true."],
  );
  const resumed = await create({ autoPause: true, autoResume: { enabled: true } });
  assert.equal(resumed.status, 400);
  assert.match(resumed.body.message, /^autoPauseMemory=false .* cannot be combined with autoResume/);
  assert.equal(api.node.sandboxes.size, 0);
  const made = await create({ autoPause: true, autoResume: { enabled: false } });
  assert.equal(api.node.get(made.body.sandboxID)?.spec.timeoutCapture, "disk");
  assert.equal(api.node.get(await api.create({ autoPause: true }))?.spec.timeoutCapture, undefined);
});

test("fork: one result for each copy, failures in place", async () => {
  const id = await api.create({ timeout: 100 });
  api.node.failNext("fork", new AenvError("exhausted", "no slots left"));
  const { status, body } = await api.call("POST", `/sandboxes/${id}/fork`, { count: 3, timeout: 7 });
  assert.equal(status, 201);
  assert.deepEqual(body[0], { error: { code: 429, message: "no slots left" } });
  const copies = body.slice(1).map(({ sandbox }: { sandbox: { sandboxID: string } }) => sandbox.sandboxID);
  assert.equal(new Set([id, ...copies]).size, 3);
  assert.equal(api.node.get(copies[0])?.endAtMs, api.node.nowMs + 7_000);
  assert.equal((await api.call("POST", `/sandboxes/${id}/fork`)).body.length, 1);
  for (const count of [0, 101, 1.5]) {
    const refused = await api.call("POST", `/sandboxes/${id}/fork`, { count });
    assert.equal(refused.status, 400);
    assert.match(refused.body.message, /count/);
  }
});
