import { after } from "node:test";
import { startTestServer, type TestServer } from "./start.ts";

export { fromSetUp, startTestServer, type TestServer, until } from "./start.ts";

let shared: Promise<TestServer> | undefined;

/** The server all end-to-end tests of one run share (they run in one process); stopped after the last. */
export function sharedServer(): Promise<TestServer> {
  shared ??= startTestServer();
  return shared;
}

after(async () => {
  if (shared !== undefined) await (await shared).stop();
});
