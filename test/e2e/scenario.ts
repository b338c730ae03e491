import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import type { TestContext } from "node:test";
import { fromSetUp, type TestServer } from "./server.ts";

const folder = join(import.meta.dirname, "sdk_python");

/** Runs a Python program of sdk_python/ against a server, which has to pass exactly so many tests: one that is not run is missed. */
export async function runScenario(server: TestServer, file: string, tests: number, t: TestContext): Promise<void> {
  const child = spawn(fromSetUp("AENV_TEST_PYTHON"), [join(folder, file)], {
    // As a user points it at a server: by environment.
    env: {
      PATH: process.env.PATH,
      PYTHONDONTWRITEBYTECODE: "1",
      E2B_API_URL: server.url,
      E2B_SANDBOX_URL: server.url,
      E2B_API_KEY: server.apiKey,
    },
    stdio: ["ignore", "pipe", "pipe"],
    signal: t.signal,
  });
  const [said, complaints, [exitCode]] = await Promise.all([
    text(child.stdout),
    text(child.stderr),
    once(child, "exit"),
  ]);
  for (const line of said.trimEnd().split("\n")) t.diagnostic(line);
  assert.equal(exitCode, 0, said + complaints);
  assert.equal(said.match(/^ok /gm)?.length, tests, said);
}
