import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, it } from "node:test";
import { localRunner } from "#lib/spawn";
import { createApi } from "../../scripts/setup/api.ts";
import { dataDir, readKey } from "../../scripts/setup/data-dir.ts";
import { root } from "../../scripts/setup/node.js";
import { removeServer } from "./remove.ts";
import { freePort } from "./start.ts";

const UP_MS = 240_000;

describe("npm run up, status, down", { timeout: 2 * UP_MS }, () => {
  it("starts a server that works, leaves it alone when run again, and finds paused sandboxes after a stop", async () => {
    const folder = mkdtempSync(join(tmpdir(), "aenv-up-"));
    const data = dataDir(join(folder, "data"));
    const url = `http://127.0.0.1:${await freePort()}`;
    const env = environment({ XDG_CONFIG_HOME: join(folder, "config"), AENV_API_KEY: "dummy" });
    const script = async (name: string, ...args: string[]): Promise<string> => {
      const argv = [process.execPath, join(root, "scripts", `${name}.js`), "--data-dir", data.path, ...args];
      const { stdout } = await localRunner().run(argv, { env, timeoutMs: UP_MS });
      return new TextDecoder().decode(stdout);
    };
    const aenv = async (...args: string[]): Promise<string> => {
      const { stdout } = await localRunner().run([join(root, "bin", "aenv"), ...args], { env, timeoutMs: 60_000 });
      return new TextDecoder().decode(stdout).trim();
    };
    try {
      const first = await script("up", "--yes", "--port", new URL(url).port);
      assert.match(first, /ok +find the fork as it was/);
      assert.ok(first.includes(`export E2B_API_URL=${url} E2B_SANDBOX_URL=${url} E2B_API_KEY=dummy`), first);
      const authority = join(folder, "config", "aenv", "ca.pem");
      const tlsPort = Number(new URL(url).port) + 443;
      assert.ok(first.includes(`export E2B_DOMAIN=e2b.localhost:${tlsPort} E2B_API_KEY=dummy`), first);
      assert.ok(first.includes(`NODE_EXTRA_CA_CERTS=${authority} SSL_CERT_FILE=${authority}`), first);
      assert.match(readFileSync(authority, "utf8"), /^-----BEGIN CERTIFICATE-----/);
      // The CLI is logged in: nothing tells it where the server is.
      const id = await aenv("start", "base", "--detach");
      await aenv("exec", id, "sh", "-c", "echo kept > /dev/shm/state");

      assert.match(await script("up", "--yes"), /already running/);
      const status = JSON.parse(await script("status", "--json")) as object;
      assert.match(JSON.stringify(status), /"keeper"/);

      assert.match(await script("down"), /pause 1 running sandbox/);
      await assert.rejects(fetch(`${url}/health`));
      await script("up", "--yes");
      await aenv("resume", id);
      assert.equal(await aenv("exec", id, "cat", "/dev/shm/state"), "kept");
    } finally {
      await removeServer(data, createApi(url, readKey(data) ?? ""));
      rmSync(folder, { recursive: true, force: true });
    }
  });
});

/** As a person's shell would have it; nothing of how these tests were started. */
function environment(more: Record<string, string>): Record<string, string> {
  const inherited = Object.entries(process.env).filter(
    ([name, value]) => value !== undefined && !/^(NODE|AENV_(?!CACHE)|E2B)/.test(name),
  );
  return { ...(Object.fromEntries(inherited) as Record<string, string>), ...more };
}
