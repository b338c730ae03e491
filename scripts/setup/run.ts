import { type ChildProcess, spawn } from "node:child_process";
import { cacheOwner } from "./cache.js";

export interface RunOptions {
  readonly cwd?: string;
  /** Added to the environment of the scripts. */
  readonly env?: Readonly<Record<string, string>>;
  /** Runs as the person whose cache it is, when that is not root (see cacheOwner). */
  readonly asOwner?: boolean;
  readonly stdin?: string;
  readonly timeoutMs?: number;
}

export interface Output {
  /** 128 + signal when a signal ended it, 127 when the program is not there. */
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

const TAIL_LINES = 25;
const OUTPUT_LIMIT = 4 * 1024 * 1024;

/** Runs a command quietly. Throws with the end of its output when it fails. */
export async function run(argv: readonly string[], options: RunOptions = {}): Promise<string> {
  const { code, stdout, stderr } = await output(argv, options);
  if (code !== 0) {
    const said = `${stdout}\n${stderr}`.trim().split("\n").slice(-TAIL_LINES).join("\n");
    throw new Error(`${argv.join(" ")}\nexited with ${code}:\n${said}`);
  }
  return stdout;
}

/** Runs a command to its end and says what came of it; also for commands that may fail or not be there. */
export async function output(argv: readonly string[], options: RunOptions = {}): Promise<Output> {
  const child = start(argv, options, ["pipe", "pipe", "pipe"]);
  const stdout = collect(child.stdout);
  const stderr = collect(child.stderr);
  child.stdin?.on("error", () => {}); // a command that ends before it has read its input
  child.stdin?.end(options.stdin ?? "");
  const code = await exitCode(child);
  return { code, stdout: await stdout, stderr: await stderr };
}

/** Runs a command on our own terminal and returns its exit code. */
export async function show(argv: readonly string[], options: RunOptions = {}): Promise<number> {
  return await exitCode(start(argv, options, ["ignore", "inherit", "inherit"]));
}

/** True when a program of this name can be started. */
export async function has(program: string): Promise<boolean> {
  return (await output(["which", program])).code === 0;
}

function start(argv: readonly string[], options: RunOptions, stdio: ("pipe" | "inherit" | "ignore")[]): ChildProcess {
  const [program = "", ...args] = argv;
  return spawn(program, args, {
    stdio,
    cwd: options.cwd,
    env: { ...process.env, ...options.env },
    ...(options.timeoutMs === undefined ? {} : { timeout: options.timeoutMs, killSignal: "SIGKILL" as const }),
    ...(options.asOwner ? cacheOwner() : {}),
  });
}

async function collect(stream: NodeJS.ReadableStream | null): Promise<string> {
  let text = "";
  if (stream === null) return text;
  stream.setEncoding("utf8");
  for await (const part of stream) text = (text + part).slice(-OUTPUT_LIMIT);
  return text;
}

function exitCode(child: ChildProcess): Promise<number> {
  return new Promise((resolve, reject) => {
    child.once("error", (error: NodeJS.ErrnoException) => (error.code === "ENOENT" ? resolve(127) : reject(error)));
    child.once("close", (code, signal) => resolve(code ?? (signal === null ? 1 : 128)));
  });
}
