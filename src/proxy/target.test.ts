import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { isReserved, type Target, targetOf } from "./target.ts";

const ID = "iabcdefghij0123456789";

function target(url: string, headers: Record<string, string> = {}): Target {
  return targetOf({ url, host: headers.host, header: (name) => headers[name] });
}

function sandbox(path: string, port: number, viaProxyPath = false): Target {
  return { kind: "sandbox", sandboxId: ID, port, path, viaProxyPath };
}

describe("where a request goes", () => {
  it("is the API's when nothing names a sandbox", () => {
    for (const host of ["127.0.0.1:8000", "localhost", "api.e2b.test", "8000.example.com", "sandbox.e2b.test"]) {
      assert.deepEqual(target("/sandboxes", { host }), { kind: "api" }, host);
    }
  });

  it("is told by the host name, with any domain and E2B's old client suffix", () => {
    for (const host of [`3000-${ID}.e2b.test`, `3000-${ID}.localhost:8000`, `3000-${ID}-00000000.e2b.test`]) {
      assert.deepEqual(target("/a?b", { host }), sandbox("/a?b", 3000), host);
    }
  });

  it("is told by the SDK's headers on every other host", () => {
    const headers = { host: "127.0.0.1:8000", "e2b-sandbox-id": ID, "e2b-sandbox-port": "49999" };
    assert.deepEqual(target("/execute", headers), sandbox("/execute", 49999));
    assert.deepEqual(target("/health", { "e2b-sandbox-id": `${ID}-0000` }), sandbox("/health", 49983));
    assert.deepEqual(target("http://x:1/a?b", headers), sandbox("/a?b", 49999));
    assert.deepEqual(target("HTTP://x", headers), sandbox("/", 49999));
  });

  it("is told by AgentENV's headers below /proxy only", () => {
    const headers = { "x-agentenv-sandbox-id": ID, "x-agentenv-target-port": "80" };
    assert.deepEqual(target("/proxy/x/y?z=1", headers), sandbox("/x/y?z=1", 80, true));
    assert.deepEqual(target("/proxy", headers), sandbox("/", 80, true));
    assert.deepEqual(target("/proxy?z", headers), sandbox("/?z", 80, true));
    assert.deepEqual(target("/proxyx", headers), { kind: "api" });
    assert.equal(target("/proxy/x").kind, "invalid");
  });

  it("refuses ports that are none", () => {
    for (const port of ["0", "65536", "x", "-1", "80.5", ""]) {
      assert.equal(target("/", { "e2b-sandbox-id": ID, "e2b-sandbox-port": port }).kind, "invalid", port);
    }
  });
});

describe("routes of the agent that only the node may use", () => {
  it("are found however they are spelt", () => {
    for (const path of ["/init", "/init?x=1", "//init", "/./init", "/%69nit", "/init/"]) {
      assert.equal(isReserved(49983, path), true, path);
    }
  });
  it("are free names on other ports, and others are free here", () => {
    assert.equal(isReserved(3000, "/init"), false);
    for (const path of ["/health", "/files?path=/init", "/initial", "/%"])
      assert.equal(isReserved(49983, path), false, path);
  });
});
