import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { Sandbox } from "e2b";
import { api, ask, type Answer as Reply } from "./http.ts";
import { newSandbox } from "./sdk.ts";
import { sharedServer, type TestServer } from "./server.ts";

interface Operation {
  readonly responses: Readonly<Record<string, { readonly description?: string }>>;
  readonly security?: readonly unknown[];
  readonly parameters?: readonly { readonly name: string; readonly in: string }[];
  readonly requestBody?: unknown;
}

interface Document {
  readonly openapi: string;
  readonly info: { readonly title: string; readonly version: string };
  readonly paths: Readonly<Record<string, Readonly<Record<string, Operation>>>>;
  readonly components: { readonly securitySchemes: object };
}

interface Route extends Operation {
  readonly method: string;
  readonly path: string;
}

const ID = "inosuchsandbox000000";
/** What the SDKs and the CLI call (those of them that this server has). */
const CALLED = [
  "POST /v2/sandboxes",
  "POST /sandboxes",
  "POST /v2/sandboxes/{sandboxID}/connect",
  "POST /sandboxes/{sandboxID}/connect",
  "GET /v2/sandboxes",
  "GET /sandboxes",
  "GET /sandboxes/{sandboxID}",
  "DELETE /sandboxes/{sandboxID}",
  "POST /sandboxes/{sandboxID}/timeout",
  "POST /sandboxes/{sandboxID}/refreshes",
  "POST /sandboxes/{sandboxID}/pause",
  "POST /sandboxes/{sandboxID}/resume",
  "POST /sandboxes/{sandboxID}/fork",
  "GET /sandboxes/metrics",
  "GET /sandboxes/{sandboxID}/metrics",
  "GET /sandboxes/{sandboxID}/logs",
  "GET /v2/sandboxes/{sandboxID}/logs",
  "GET /templates",
  "GET /templates/{templateID}",
  "DELETE /templates/{templateID}",
  "GET /templates/aliases/{alias}",
];

async function documentOf(server: TestServer): Promise<Document> {
  const answer = await ask(server, { path: "/openapi.json" });
  assert.equal(answer.status, 200);
  return JSON.parse(answer.text) as Document;
}

function routesOf(document: Document): Route[] {
  return Object.entries(document.paths).flatMap(([path, operations]) =>
    Object.entries(operations).map(([method, operation]) => ({ ...operation, method: method.toUpperCase(), path })),
  );
}

/** The path with something in place of its parameters. */
function filled(path: string): string {
  return path.replaceAll(/\{\w+\}/g, ID);
}

/** The error's message; its shape and type are what clients rely on. */
function messageOf(reply: Reply): string {
  assert.match(reply.headers["content-type"] ?? JSON.stringify(reply), /^application\/json/);
  const body = JSON.parse(reply.text) as { code: number; message: string };
  assert.equal(body.code, reply.status);
  assert.equal(typeof body.message, "string");
  return body.message;
}

describe("the HTTP API's document", { timeout: 60_000 }, () => {
  it("is OpenAPI 3.1 in itself: references lead somewhere, parameters are declared, answers described", async () => {
    const document = await documentOf(await sharedServer());
    assert.match(document.openapi, /^3\.1\.\d+$/);
    assert.ok(document.info.title !== "" && document.info.version !== "");
    const text = JSON.stringify(document);
    for (const [, reference = ""] of text.matchAll(/"\$ref":"#\/([^"]+)"/g)) {
      const target = reference
        .split("/")
        .reduce<unknown>((at, key) => (at as Record<string, unknown>)?.[key], document);
      assert.ok(target !== undefined, reference);
    }
    for (const { method, path, parameters = [], responses } of routesOf(document)) {
      const declared = parameters.filter((each) => each.in === "path").map(({ name }) => name);
      assert.deepEqual(declared.sort(), [...path.matchAll(/\{(\w+)\}/g)].map((match) => match[1]).sort(), path);
      assert.ok(
        Object.keys(responses).some((status) => status.startsWith("2")),
        `${method} ${path}`,
      );
      for (const [status, { description }] of Object.entries(responses)) assert.ok(description, `${path} ${status}`);
    }
    assert.ok(Object.keys(document.components.securitySchemes).length > 0);
  });

  it("has what clients call", async () => {
    const documented = routesOf(await documentOf(await sharedServer())).map(({ method, path }) => `${method} ${path}`);
    assert.deepEqual(
      CALLED.filter((route) => !documented.includes(route)),
      [],
    );
  });
});

describe("the HTTP API", { timeout: 120_000 }, () => {
  it("answers everybody on /health and /version, and its own host on /metrics", async () => {
    const server = await sharedServer();
    const health = await ask(server, { path: "/health" });
    assert.deepEqual([health.status, health.text], [204, ""]);
    const version = JSON.parse((await ask(server, { path: "/version" })).text) as Record<string, unknown>;
    assert.equal(version.commit, "test");
    assert.equal(typeof version.dataFormat, "number");
    const metrics = await ask(server, { path: "/metrics" });
    assert.equal(metrics.status, 200);
    assert.match(metrics.text, /^aenv_sandboxes\{state="running"\} \d+$/m);
    // Nobody can say for himself that he is near.
    const far = await ask(server, { path: "/metrics", headers: { "x-aenv-peer": "10.0.0.1" } });
    assert.equal(far.status, 200);
  });

  it("asks for the key on every other route, and says where it lies", async () => {
    const server = await sharedServer();
    for (const { method, path, security } of routesOf(await documentOf(server))) {
      if (security?.length === 0) continue;
      for (const headers of [
        {},
        { "X-API-Key": "wrong" },
        { "X-API-Key": "" },
        { Authorization: `Bearer ${server.apiKey}` },
      ]) {
        const reply = await ask(server, { method, path: filled(path), headers: { ...headers } });
        if (path === "/teams" && "Authorization" in headers) continue;
        if (path === "/metrics") continue;
        assert.equal(reply.status, 401, `${method} ${path}`);
        assert.match(messageOf(reply), /api-key/);
      }
    }
  });

  it("says 405 with Allow to a wrong method and 404 to an unknown route, with a key or without", async () => {
    const server = await sharedServer();
    const document = await documentOf(server);
    for (const headers of [{}, { "X-API-Key": server.apiKey }]) {
      for (const [path, operations] of Object.entries(document.paths)) {
        const reply = await ask(server, { method: "PUT", path: filled(path), headers });
        assert.equal(reply.status, 405, path);
        messageOf(reply);
        const allowed = (reply.headers.allow ?? "").split(", ");
        for (const documented of Object.keys(operations)) assert.ok(allowed.includes(documented.toUpperCase()), path);
      }
      for (const path of ["/", "/nope", "/v9/sandboxes", "/sandboxes/a/b/c", "//health", "/%00"]) {
        const reply = await ask(server, { path, headers });
        assert.equal(reply.status, 404, path);
        messageOf(reply);
      }
    }
  });

  it("says 400 to bad JSON and 413 to a body too large, on every route that takes one", async () => {
    const server = await sharedServer();
    const headers = { "X-API-Key": server.apiKey, "Content-Type": "application/json" };
    const routes = routesOf(await documentOf(server)).filter(({ requestBody }) => requestBody !== undefined);
    assert.ok(routes.length > 8);
    const large = JSON.stringify({ templateID: "x".repeat(2 * 1024 * 1024) });
    for (const { method, path } of routes) {
      const bad = await ask(server, { method, path: filled(path), headers, body: '{"timeout":' });
      assert.equal(bad.status, 400, `${method} ${path}`);
      assert.match(messageOf(bad), /not valid JSON/);
      const list = await ask(server, { method, path: filled(path), headers, body: "[1]" });
      assert.equal(list.status, 400, `${method} ${path}`);
      const over = await ask(server, { method, path: filled(path), headers, body: large });
      assert.equal(over.status, 413, `${method} ${path}`);
      assert.match(messageOf(over), /larger/, `${method} ${path}`);
    }
  });

  it("names the field that is wrong", async () => {
    const server = await sharedServer();
    const wrong: readonly [method: string, path: string, body: unknown, field: RegExp][] = [
      ["POST", "/v2/sandboxes", {}, /templateID/],
      ["POST", "/v2/sandboxes", { templateID: 5 }, /templateID/],
      ["POST", "/v2/sandboxes", { templateID: "base", timeout: "60" }, /timeout/],
      ["POST", "/v2/sandboxes", { templateID: "base", timeout: 1.5 }, /timeout/],
      ["POST", "/v2/sandboxes", { templateID: "base", timeout: 0 }, /timeout/],
      ["POST", "/v2/sandboxes", { templateID: "base", timeout: 10 ** 9 }, /Timeout cannot be greater than \d+ hours/],
      ["POST", "/v2/sandboxes", { templateID: "base", metadata: { a: 1 } }, /metadata\.a/],
      ["POST", "/v2/sandboxes", { templateID: "base", envVars: { "A=B": "1" } }, /envVars/],
      ["POST", "/v2/sandboxes", { templateID: "base", iam: { tokens: { a: {} } } }, /iam\.tokens/],
      ["POST", "/sandboxes", { templateID: "base", secure: "yes" }, /secure/],
      ["POST", `/sandboxes/${ID}/timeout`, {}, /timeout/],
      ["POST", `/sandboxes/${ID}/fork`, { count: 0 }, /count/],
      ["POST", `/sandboxes/${ID}/fork`, { count: 101 }, /count/],
      ["GET", "/v2/sandboxes?limit=0", undefined, /limit/],
      ["GET", "/v2/sandboxes?limit=101", undefined, /limit/],
      ["GET", "/v2/sandboxes?state=dead", undefined, /state/],
      ["GET", "/v2/sandboxes?nextToken=%21", undefined, /nextToken/],
      ["GET", "/v2/sandboxes?startedAfter=yesterday", undefined, /startedAfter/],
      ["GET", "/v2/sandboxes?metadata=%25", undefined, /metadata/],
      ["POST", "/v3/templates", { name: "x", cpuCount: 3 }, /cpuCount/],
      ["POST", "/v3/templates", { name: "x", memoryMB: 10 }, /memoryMB/],
      ["POST", "/v3/templates", { name: "" }, /name/],
    ];
    for (const [method, path, body, field] of wrong) {
      const { status, json } = await api(server, method, path, body);
      const message = String((json as { message?: unknown }).message);
      assert.equal(status, 400, `${method} ${path} ${JSON.stringify(body)}: ${message}`);
      assert.match(message, field);
    }
  });

  it("says 404 of what is not there, in E2B's words", async () => {
    const server = await sharedServer();
    for (const [method, path, body] of [
      ["GET", `/sandboxes/${ID}`, undefined],
      ["GET", `/sandboxes/${ID}/metrics`, undefined],
      ["GET", `/sandboxes/${ID}/logs`, undefined],
      ["GET", `/v2/sandboxes/${ID}/logs`, undefined],
      ["DELETE", `/sandboxes/${ID}`, undefined],
      ["POST", `/sandboxes/${ID}/pause`, {}],
      ["POST", `/sandboxes/${ID}/resume`, {}],
      ["POST", `/sandboxes/${ID}/connect`, { timeout: 60 }],
      ["POST", `/v2/sandboxes/${ID}/connect`, {}],
      ["POST", `/sandboxes/${ID}/timeout`, { timeout: 60 }],
      ["POST", `/sandboxes/${ID}/refreshes`, {}],
      ["POST", `/sandboxes/${ID}/fork`, {}],
    ] as const) {
      const { status, json } = await api(server, method, path, body);
      const message = `Sandbox "${ID}" doesn't exist or you don't have access to it`;
      assert.deepEqual([status, json], [404, { code: 404, message }], `${method} ${path}`);
    }
    const template = await api(server, "POST", "/v2/sandboxes", { templateID: "nope" });
    assert.deepEqual([template.status, template.json], [404, { code: 404, message: "template 'nope' not found" }]);
    const tag = await api(server, "POST", "/v2/sandboxes", { templateID: "base:nope" });
    const message = "tag 'nope' does not exist for template 'base'";
    assert.deepEqual([tag.status, tag.json], [404, { code: 404, message }]);
    assert.equal((await api(server, "GET", "/templates/aliases/nope")).status, 404);
    assert.equal((await api(server, "DELETE", "/templates/nope")).status, 404);
  });

  it("says 409 where the state does not fit", async () => {
    const server = await sharedServer();
    await using sandbox = await newSandbox();
    const path = `/sandboxes/${sandbox.sandboxId}`;
    assert.equal((await api(server, "POST", `${path}/resume`, {})).status, 409);
    assert.equal((await api(server, "POST", `${path}/pause`)).status, 204);
    assert.equal((await api(server, "POST", `${path}/pause`, {})).status, 409);
    assert.equal((await api(server, "POST", `${path}/fork`, {})).status, 409);
    assert.equal((await api(server, "POST", `/v2${path}/connect`, {})).status, 201);
    assert.equal((await api(server, "POST", `/v2${path}/connect`, {})).status, 200);
    assert.equal((await api(server, "DELETE", path)).status, 204);
    assert.equal((await api(server, "DELETE", path)).status, 404);
  });

  it("lists running ones whole (v1), and all by pages that nobody falls between (v2)", async () => {
    const server = await sharedServer();
    const metadata = { "page/test": "a b&c=d" };
    const made = await Promise.all(Array.from({ length: 5 }, () => newSandbox({ metadata })));
    try {
      // Each key and value, then the list of pairs, then the query: encoded three times, as the SDKs do.
      const pairs = Object.entries(metadata)
        .map((pair) => pair.map(encodeURIComponent).join("="))
        .join("&");
      const query = encodeURIComponent(encodeURIComponent(pairs));
      const ids = new Set(made.map(({ sandboxId }) => sandboxId));
      await made[0]?.pause();
      const v1 = await api(server, "GET", `/sandboxes?metadata=${query}`);
      const running = (v1.json as { sandboxID: string; state: string }[]).map(({ sandboxID }) => sandboxID);
      assert.deepEqual(new Set(running), ids.difference(new Set([made[0]?.sandboxId])));

      const seen: { sandboxID: string; startedAt: string; state: string }[] = [];
      let token = "";
      for (let pages = 1; ; pages += 1) {
        const path = `/v2/sandboxes?metadata=${query}&limit=2${token === "" ? "" : `&nextToken=${token}`}`;
        const { status, json, headers } = await api(server, "GET", path);
        assert.equal(status, 200);
        const page = json as typeof seen;
        seen.push(...page);
        token = String(headers["x-next-token"] ?? "");
        if (token === "") {
          assert.equal(pages, 3);
          break;
        }
        assert.equal(page.length, 2);
        // What ends between two pages moves nothing.
        if (pages === 1) await Sandbox.kill(page[0]?.sandboxID ?? "");
      }
      assert.deepEqual(new Set(seen.map(({ sandboxID }) => sandboxID)), ids);
      assert.equal(seen.length, 5);
      const starts = seen.map(({ startedAt }) => Date.parse(startedAt));
      assert.deepEqual(
        starts,
        [...starts].sort((a, b) => b - a),
      );
      assert.equal(seen.filter(({ state }) => state === "paused").length, 1);
    } finally {
      await Promise.all(made.map((sandbox) => Sandbox.kill(sandbox.sandboxId)));
    }
  });
});
