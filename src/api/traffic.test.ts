import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { TestApi } from "./testing.ts";

let api: TestApi;
beforeEach(async () => {
  api = new TestApi();
  await api.publish("base");
});

test("a sandbox without public traffic has a token for it, of its own", async () => {
  const create = { templateID: "base", network: { allowPublicTraffic: false } };
  const { body } = await api.call("POST", "/v2/sandboxes", create);
  const { body: other } = await api.call("POST", "/v2/sandboxes", create);
  assert.match(body.trafficAccessToken, /^[0-9a-f]{32,}$/);
  assert.notEqual(body.trafficAccessToken, other.trafficAccessToken);
  assert.notEqual(body.trafficAccessToken, body.envdAccessToken);
  const { body: again } = await api.call("POST", `/v2/sandboxes/${body.sandboxID}/connect`, {});
  assert.equal(again.trafficAccessToken, body.trafficAccessToken);
  const { body: detail } = await api.call("GET", `/sandboxes/${body.sandboxID}`);
  assert.deepEqual(detail.network, { allowPublicTraffic: false });
  assert.ok(!("trafficAccessToken" in detail));
});

test("without public traffic a sandbox has to be secured", async () => {
  const create = { templateID: "base", network: { allowPublicTraffic: false } };
  const { status, body } = await api.call("POST", "/sandboxes", create);
  assert.equal(status, 400);
  assert.match(
    body.message,
    /You cannot create a sandbox without public access unless you enable secure envd access via 'secure' flag\.$/,
  );
  assert.equal((await api.call("POST", "/sandboxes", { ...create, secure: true })).status, 201);
});

test("a mask of the request's host is kept as it was given", async () => {
  // biome-ignore lint/suspicious/noTemplateCurlyInString: E2B's word for the port
  for (const mask of ["localhost:${PORT}", "${PORT}-app.example.com", "app.example.com:8443", "[::1]:80"]) {
    const id = await api.create({ network: { maskRequestHost: mask } });
    assert.equal(api.node.get(id)?.spec.traffic?.maskHost, mask);
    assert.equal((await api.call("GET", `/sandboxes/${id}`)).body.network.maskRequestHost, mask);
  }
});

test("a domain is told only to who has reached it, with the port that was asked", async () => {
  const create = async (headers: Record<string, string>): Promise<string | null> =>
    (await api.call("POST", "/v2/sandboxes", { templateID: "base" }, headers)).body.domain;
  const secure = { "X-Aenv-Scheme": "https" };
  assert.equal(await create({ ...secure, Host: "api.e2b.test" }), "e2b.test");
  assert.equal(await create({ ...secure, Host: "API.e2b.test:8443" }), "e2b.test:8443");
  assert.equal(await create({ "X-Forwarded-Proto": "https", Host: "api.e2b.test" }), "e2b.test");
  for (const headers of [
    { Host: "api.e2b.test:8000" },
    { ...secure, Host: "127.0.0.1:8443" },
    { ...secure, Host: "api.e2b.test.evil" },
    { ...secure, Host: "api.e2b.test:x" },
  ])
    assert.equal(await create(headers), null);
});
