import assert from "node:assert/strict";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { dataPaths } from "../../src/config.ts";
import { Names } from "./names.ts";
import { fromSetUp, sharedServer } from "./server.ts";

const DOMAIN = "e2b.localhost";
const folder = join(import.meta.dirname, "domain");

/** As a user sets them: nothing but a domain, a key and whom to trust. */
async function userEnv(): Promise<Record<string, string | undefined>> {
  const server = await sharedServer();
  const authority = dataPaths(server.dataDir).tlsAuthority;
  const port = server.config.tlsListen?.split(":").at(-1);
  return {
    PATH: process.env.PATH,
    PYTHONDONTWRITEBYTECODE: "1",
    E2B_DOMAIN: `${DOMAIN}:${port}`,
    E2B_API_KEY: server.apiKey,
    NODE_EXTRA_CA_CERTS: authority,
    SSL_CERT_FILE: authority,
  };
}

describe("the stock SDKs with E2B_DOMAIN, over TLS", { timeout: 180_000 }, () => {
  let names: Names;
  before(async () => {
    names = await Names.open(DOMAIN);
  });
  after(() => names.close());

  for (const [what, argv] of [
    ["JavaScript", [process.execPath, join(folder, "life.ts")]],
    ["Python", [fromSetUp("AENV_TEST_PYTHON"), join(folder, "life.py")]],
    ["asynchronous Python", [fromSetUp("AENV_TEST_PYTHON"), join(folder, "life_async.py")]],
  ] as const) {
    it(`create, run, read, write, reach a port, and see it all end: ${what}`, async (t) => {
      const said = await names.run(argv, await userEnv(), t.signal);
      assert.match(said, /done\n$/);
    });
  }
});
