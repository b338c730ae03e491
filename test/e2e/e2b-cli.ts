import { spawn } from "node:child_process";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { root } from "../../scripts/setup/node.js";
import { programEnv } from "./cli.ts";
import { sharedServer } from "./server.ts";

const E2B = join(root, "node_modules", "@e2b", "cli", "dist", "index.js");

export interface E2bOptions {
  /** Nothing = /dev/null. */
  readonly stdin?: string | Uint8Array;
  /** Told what comes on standard output, as it comes. */
  readonly onStdout?: (all: string) => void;
}

/** E2B's published CLI on the shared server, as a person calls it: `e2b …`. */
export async function e2b(
  argv: readonly string[],
  { stdin, onStdout }: E2bOptions = {},
): Promise<{ code: number; stdout: string; stderr: string }> {
  const { url, apiKey } = await sharedServer();
  const env = { ...programEnv(), E2B_API_URL: url, E2B_SANDBOX_URL: url, E2B_API_KEY: apiKey };
  const child = spawn(process.execPath, [E2B, ...argv], {
    env: { ...env, HOME: "/nonexistent", NO_COLOR: "1" },
    stdio: [stdin === undefined ? "ignore" : "pipe", "pipe", "pipe"],
  });
  const ended = Promise.withResolvers<number>();
  child.on("error", ended.reject).on("close", (code) => ended.resolve(code ?? 128));
  child.stdin?.end(stdin);
  let stdout = "";
  child.stdout?.setEncoding("utf8").on("data", (chunk: string) => {
    stdout += chunk;
    onStdout?.(stdout);
  });
  const stderr = child.stderr === null ? "" : await text(child.stderr);
  return { code: await ended.promise, stdout, stderr };
}
