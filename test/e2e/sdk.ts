import { Sandbox, type SandboxOpts } from "e2b";
import { sharedServer, type TestServer } from "./server.ts";

/** Points the stock SDK at a server, as a user does: by environment. */
export function useServer(server: TestServer): void {
  process.env.E2B_API_URL = server.url;
  process.env.E2B_SANDBOX_URL = server.url;
  process.env.E2B_API_KEY = server.apiKey;
}

/** A sandbox of the shared server's `base`, ended when the `await using` scope ends. */
export async function newSandbox(options: SandboxOpts = {}): Promise<Sandbox & AsyncDisposable> {
  useServer(await sharedServer());
  const sandbox = await Sandbox.create("base", { timeoutMs: 120_000, ...options });
  return Object.assign(sandbox, {
    async [Symbol.asyncDispose]() {
      await Sandbox.kill(sandbox.sandboxId);
    },
  });
}

/** Standard output of a command, trimmed. */
export async function output(sandbox: Sandbox, command: string): Promise<string> {
  return (await sandbox.commands.run(command)).stdout.trim();
}
