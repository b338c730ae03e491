import { join } from "node:path";
import { Sandbox } from "@e2b/code-interpreter";
import { root } from "../../scripts/setup/node.js";
import { run } from "../../scripts/setup/run.ts";
import { useServer } from "./sdk.ts";
import { sharedServer, type TestServer } from "./server.ts";

let made: Promise<TestServer> | undefined;

/** The shared server, with the template code-interpreter-v1; the environment points the SDKs at it. */
export function interpreterServer(): Promise<TestServer> {
  made ??= sharedServer().then(async (server) => {
    await makeInterpreter(server);
    return server;
  });
  return made;
}

/** Makes the template as a user does: `npm run template -- code-interpreter`. Returns what it says. */
export function makeInterpreter(server: TestServer): Promise<string> {
  const script = join(root, "scripts", "template.js");
  return run([process.execPath, script, "code-interpreter", "--data-dir", server.dataDir]);
}

/** A sandbox as the SDK makes it when nobody names a template, ended when the `await using` scope ends. */
export async function newInterpreter(envs: Record<string, string> = {}): Promise<Sandbox & AsyncDisposable> {
  useServer(await interpreterServer());
  const sandbox = await Sandbox.create({ timeoutMs: 300_000, envs });
  return Object.assign(sandbox, {
    async [Symbol.asyncDispose]() {
      await Sandbox.kill(sandbox.sandboxId);
    },
  });
}
