import { type ChildProcess, spawn } from "node:child_process";
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { root } from "../../scripts/setup/node.js";
import { runOnTerminal, type Step, type TerminalResult } from "../../src/cli/testing/on-terminal.ts";
import type { TestServer } from "./server.ts";

export interface CliResult {
  /** 128+n when signal n ended it. */
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
  readonly bytes: Buffer;
}

export interface CliOptions {
  /** `open`: a pipe that stays open and silent. Nothing = /dev/null. */
  readonly stdin?: string | Uint8Array | "open";
  /** In place of the server's URL and key. */
  readonly env?: NodeJS.ProcessEnv;
  /** Told what comes on standard error, as it comes. */
  readonly onStderr?: (all: string) => void;
}

const AENV = join(root, "bin", "aenv");

/** `bin/aenv` as a person calls it, on one server. */
export class Cli {
  readonly #env: NodeJS.ProcessEnv;

  constructor(server: Pick<TestServer, "url" | "apiKey">) {
    this.#env = { ...programEnv(), AENV_URL: server.url, AENV_API_KEY: server.apiKey, XDG_CONFIG_HOME: "/nonexistent" };
  }

  async run(argv: readonly string[], options: CliOptions = {}): Promise<CliResult> {
    const { stdin, env = this.#env, onStderr } = options;
    const child = spawn(AENV, argv, { env, stdio: [stdin === undefined ? "ignore" : "pipe", "pipe", "pipe"] });
    child.stdin?.on("error", () => {}); // it may end before it has read everything
    if (stdin !== "open") child.stdin?.end(stdin);
    let stderr = "";
    child.stderr?.setEncoding("utf8").on("data", (text: string) => {
      stderr += text;
      onStderr?.(stderr);
    });
    const out: Buffer[] = [];
    child.stdout?.on("data", (chunk: Buffer) => void out.push(chunk));
    const ended = Promise.withResolvers<number>();
    child.on("error", ended.reject).on("close", (code) => ended.resolve(code ?? 128));
    const code = await ended.promise;
    const bytes = Buffer.concat(out);
    return { code, stdout: bytes.toString("utf8"), stderr, bytes };
  }

  /** One that goes on; its standard input is empty. */
  start(argv: readonly string[]): ChildProcess {
    return spawn(AENV, argv, { env: this.#env, stdio: ["ignore", "pipe", "inherit"] });
  }

  /** What a command that must succeed prints, without the last line's end. */
  async output(...argv: string[]): Promise<string> {
    const { code, stdout, stderr } = await this.run(argv);
    if (code !== 0) throw new Error(`aenv ${argv.join(" ")} exited with ${code}: ${stderr}`);
    return stdout.trimEnd();
  }

  /** On a terminal of 90x25. */
  async onTerminal(argv: readonly string[], steps: readonly Step[], env = this.#env): Promise<TerminalResult> {
    return await runOnTerminal([AENV, ...argv], env, steps);
  }
}

/** What the program itself needs, and nothing that says which server to use. */
export function programEnv(): NodeJS.ProcessEnv {
  const { PATH, HOME, AENV_CACHE_DIR } = process.env;
  return { PATH, HOME, ...(AENV_CACHE_DIR === undefined ? {} : { AENV_CACHE_DIR }) };
}

/** The environment of somebody who has not logged in yet. */
export function freshUser(): NodeJS.ProcessEnv & { readonly XDG_CONFIG_HOME: string } {
  return { ...programEnv(), XDG_CONFIG_HOME: mkdtempSync(join(tmpdir(), "aenv-cli-")) };
}
