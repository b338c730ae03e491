import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { BODY_BYTES_MAX } from "./body.ts";
import { UNSERVED } from "./routes/unserved.ts";
import { KEY, TestApi } from "./testing.ts";

let api: TestApi;
beforeEach(() => {
  api = new TestApi();
});
const NO_KEY = { "X-API-Key": "" };

test("every documented route but the public ones wants a right key, and says where it lies", async () => {
  const { body: document } = await api.call("GET", "/openapi.json");
  const open: string[] = [];
  for (const [path, operations] of Object.entries<Record<string, { security?: unknown[] }>>(document.paths)) {
    for (const [method, { security }] of Object.entries(operations)) {
      const where = path.replaceAll(/\{\w+\}/g, "x");
      const answer = await api.app.request(where, { method: method.toUpperCase() });
      if (answer.status !== 401) open.push(`${method} ${path}`);
      assert.equal(answer.status !== 401, security?.length === 0, `${method} ${path}: document and server agree`);
      if (answer.status !== 401) continue;
      assert.match(((await answer.json()) as { message: string }).message, /missing.*\/data\/api-key/);
      const wrong = await api.call(method.toUpperCase(), where, undefined, { "X-API-Key": `${KEY}0` });
      assert.equal(wrong.status, 401);
      assert.match(wrong.body.message, /wrong/);
    }
  }
  assert.deepEqual(open, ["get /health", "get /version"]);
});

test("the document lists every route and is OpenAPI 3.1", async () => {
  const { body } = await api.call("GET", "/openapi.json", undefined, NO_KEY);
  assert.equal(body.openapi, "3.1.0");
  const documented = Object.entries<object>(body.paths).flatMap(([path, operations]) =>
    Object.keys(operations).map((method) => `${method.toUpperCase()} ${path.replaceAll(/\{(\w+)\}/g, ":$1")}`),
  );
  const served = api.app.routes.filter(({ method }) => method !== "ALL").map(({ method, path }) => `${method} ${path}`);
  const refused = UNSERVED.map(([method, path]) => `${method} ${path}`);
  assert.deepEqual(new Set([...documented, "GET /openapi.json", ...refused]), new Set(served));
});

test("routes of E2B that are not served say so, and are not taken for a sandbox that is missing", async () => {
  for (const [method, path, , wanted] of UNSERVED) {
    const { status, body } = await api.call(method, path.replaceAll(/:\w+/g, "x"));
    assert.deepEqual([status, body.code], [wanted, wanted], `${method} ${path}`);
    assert.match(body.message, wanted === 403 ? /not enabled/ : /not served/);
  }
});

test("health, version and metrics", async () => {
  const health = await api.call("GET", "/health", undefined, NO_KEY);
  assert.deepEqual([health.status, health.text], [204, ""]);
  assert.deepEqual((await api.call("GET", "/version", undefined, NO_KEY)).body, {
    version: "1.2.3",
    commit: "abc",
    dataFormat: 1,
  });
  const metrics = async (headers: Record<string, string>) =>
    (await api.call("GET", "/metrics", undefined, headers)).status;
  for (const [peer, status] of [
    ["127.0.0.1", 200],
    ["127.8.8.8", 200],
    ["::1", 200],
    ["::ffff:127.0.0.1", 200],
    ["10.0.0.1", 401],
    ["127.0.0.1.evil", 401],
    ["", 401],
  ] as const) {
    assert.equal(await metrics({ ...NO_KEY, "x-aenv-peer": peer }), status, peer);
  }
  assert.equal(await metrics({}), 200);
});

test("metrics need the key when a proxy on the same host passes the question on", async () => {
  for (const [name, value] of [
    ["X-Forwarded-For", "203.0.113.7"],
    ["X-Forwarded-For", "127.0.0.1"],
    ["X-Forwarded-For", ""],
    ["X-Forwarded-Proto", "https"],
    ["x-forwarded-host", "api.e2b.test"],
    ["Forwarded", "for=203.0.113.7"],
    ["X-Real-IP", "203.0.113.7"],
    ["Via", "1.1 proxy"],
  ] as const) {
    const headers = { "x-aenv-peer": "127.0.0.1", [name]: value };
    const refused = await api.call("GET", "/metrics", undefined, { ...NO_KEY, ...headers });
    assert.deepEqual([refused.status, refused.body.code], [401, 401], name);
    assert.equal((await api.call("GET", "/metrics", undefined, headers)).status, 200, name);
  }
});

test("a bearer token is taken for the teams and for nothing else", async () => {
  const bearer = { ...NO_KEY, Authorization: `Bearer ${KEY}` };
  const response = await api.app.request("/teams", { headers: { Authorization: bearer.Authorization } });
  assert.equal(response.status, 200);
  const [team] = (await response.json()) as { apiKey: string; isDefault: boolean }[];
  assert.deepEqual([team?.apiKey, team?.isDefault], [KEY, true]);
  assert.equal((await api.app.request("/teams", { headers: { Authorization: "Bearer no" } })).status, 401);
  assert.equal((await api.app.request("/sandboxes", { headers: { Authorization: bearer.Authorization } })).status, 401);
});

test("no route is 404, another method 405 with Allow, both JSON", async () => {
  for (const headers of [{}, NO_KEY]) {
    const missing = await api.call("GET", "/nope/x", undefined, headers);
    assert.deepEqual([missing.status, missing.body.code], [404, 404]);
    const wrong = await api.call("PUT", "/sandboxes/x", undefined, headers);
    assert.deepEqual([wrong.status, wrong.body.code, wrong.headers.get("allow")], [405, 405, "GET, DELETE"]);
  }
  assert.equal((await api.call("GET", "/v2/sandboxes/x/connect")).headers.get("allow"), "POST");
});

test("bad JSON is 400, whatever its type is said to be; none at all is {}", async () => {
  for (const type of ["application/json", "text/plain"]) {
    const bad = await api.call("POST", "/v2/sandboxes", '{"a":', { "content-type": type });
    assert.equal(bad.status, 400);
    assert.match(bad.body.message, /^the body is not valid JSON/);
    const array = await api.call("POST", "/v2/sandboxes", "[]", { "content-type": type });
    assert.equal(array.status, 400);
    assert.match(array.body.message, /body/);
  }
  assert.match((await api.call("POST", "/v2/sandboxes")).body.message, /templateID/);
});

test("a body over the limit is 413, said or streamed", async () => {
  const large = JSON.stringify({ templateID: "x".repeat(BODY_BYTES_MAX) });
  assert.equal((await api.call("POST", "/sandboxes", large)).status, 413);
  let sent = 0;
  const body = new ReadableStream<Uint8Array>({
    pull(controller) {
      sent += 65_536;
      controller.enqueue(new Uint8Array(65_536));
    },
  });
  const init = { method: "POST", body, duplex: "half", headers: { "X-API-Key": KEY } };
  const streamed = await api.app.request("/sandboxes", init as RequestInit);
  assert.deepEqual([streamed.status, ((await streamed.json()) as { code: number }).code], [413, 413]);
  assert.ok(sent < BODY_BYTES_MAX * 1.5, `${sent} bytes were taken`);
  const wide = JSON.stringify({ templateID: "nope", metadata: { a: "x".repeat(BODY_BYTES_MAX / 2) } });
  assert.equal((await api.call("POST", "/sandboxes", wide)).status, 404);
});

test("any page may call: preflight without a key, headers shown, errors too", async () => {
  const preflight = await api.app.request("/v2/sandboxes", {
    method: "OPTIONS",
    headers: {
      Origin: "https://page.example",
      "Access-Control-Request-Method": "POST",
      "Access-Control-Request-Headers": "x-api-key,browser",
    },
  });
  assert.equal(preflight.status, 204);
  assert.equal(preflight.headers.get("access-control-allow-headers"), "x-api-key,browser");
  assert.match(preflight.headers.get("access-control-allow-methods") ?? "", /DELETE/);
  const refused = await api.call("GET", "/v2/sandboxes", undefined, { ...NO_KEY, Origin: "https://page.example" });
  assert.equal(refused.status, 401);
  assert.equal(refused.headers.get("access-control-allow-origin"), "*");
  assert.match(refused.headers.get("access-control-expose-headers") ?? "", /X-Next-Token/);
});
