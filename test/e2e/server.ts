import { after } from "node:test";
import { leaseServer } from "./leases.ts";
import { startTestServer, type TestServer } from "./start.ts";

export { fromSetUp, startTestServer, type TestServer, until } from "./start.ts";

let shared: Promise<TestServer> | undefined;

/** The server all end-to-end tests of one file share. Where files run side by side each has one for itself, which the next file
 *  then takes; a file that is run alone starts one, which is stopped after its last test. */
export function sharedServer(): Promise<TestServer> {
  shared ??= leasesDir === undefined ? startTestServer() : leaseServer(leasesDir);
  return shared;
}

/** Set by `servers.ts`, which also stops what has been started. */
const leasesDir = process.env.AENV_TEST_SERVERS;

after(async () => {
  if (shared !== undefined && leasesDir === undefined) await (await shared).stop();
});
