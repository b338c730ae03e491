import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { runningTestServer, startTestServer, type TestServer } from "./start.ts";

/**
 * A server for this process alone until it ends: one of those in the folder that nobody has now, or a new one. There are never
 * more than processes that want one at the same time.
 */
export async function leaseServer(dir: string): Promise<TestServer> {
  let file = join(dir, "0");
  for (let at = 1; !(await isMine(file)); at += 1) file = join(dir, String(at));
  if (existsSync(file)) return serverOf(file);
  const server = await startTestServer();
  writeFileSync(file, JSON.stringify({ config: server.config, baseImage: server.baseImage }));
  return server;
}

/** Those that have been started. */
export function leasedServers(dir: string): TestServer[] {
  return readdirSync(dir).map((name) => serverOf(join(dir, name)));
}

function serverOf(file: string): TestServer {
  return runningTestServer(JSON.parse(readFileSync(file, "utf8")) as Pick<TestServer, "config" | "baseImage">);
}

/** A name that the kernel takes back from a process that is gone, however it went: an abstract socket's. */
function isMine(file: string): Promise<boolean> {
  const { promise, resolve, reject } = Promise.withResolvers<boolean>();
  const lock = createServer();
  lock.once("error", (error: NodeJS.ErrnoException) => {
    if (error.code === "EADDRINUSE") resolve(false);
    else reject(error);
  });
  lock.listen(`\0aenv-test-server:${file}`, () => resolve(true)).unref();
  return promise;
}
