import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { KEY } from "./server.ts";

const HARNESS = fileURLToPath(new URL("./terminal.py", import.meta.url));
const ENTRY = fileURLToPath(new URL("../../aenv.ts", import.meta.url));

/** False, or why the tests on a real terminal cannot be done here. */
export const NO_TERMINAL: false | string =
  spawnSync("python3", ["-c", "import pty, termios"]).status === 0 ? false : "needs python3 with its pty module";

export type Step = ["expect" | "send" | "signal", string] | ["resize", number, number] | ["hangup"];

export interface TerminalResult {
  readonly code: number;
  /** When the last step was done. */
  readonly raw: boolean;
  /** The terminal's settings were in the end what they had been. */
  readonly restored: boolean;
  readonly shown: string;
}

/** Runs the real program against a server double on a real terminal, which `steps` looks at and types on. */
export async function onTerminal(
  url: string,
  argv: readonly string[],
  steps: readonly Step[],
): Promise<TerminalResult> {
  const env = { PATH: process.env.PATH, AENV_URL: url, AENV_API_KEY: KEY, XDG_CONFIG_HOME: "/nonexistent" };
  return await runOnTerminal([process.execPath, ENTRY, ...argv], env, steps);
}

/** Runs a command on a real terminal of 90x25. */
export async function runOnTerminal(
  command: readonly string[],
  env: NodeJS.ProcessEnv,
  steps: readonly Step[],
): Promise<TerminalResult> {
  const child = spawn("python3", [HARNESS, JSON.stringify(steps), ...command], {
    stdio: ["ignore", "pipe", "pipe"],
    env: { TERM: "xterm", ...env },
  });
  const [stdout, stderr] = await Promise.all([child.stdout.toArray(), child.stderr.toArray()]);
  assert.equal(Buffer.concat(stderr).toString(), "");
  return JSON.parse(Buffer.concat(stdout).toString()) as TerminalResult;
}
