import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { closeSync, openSync } from "node:fs";
import { type FileHandle, open } from "node:fs/promises";
import { constants } from "node:os";
import type { Readable } from "node:stream";
import { startTicks as currentTicks, isAlive, openStat } from "./proc.ts";
import {
  CommandError,
  type CommandResult,
  type CommandRunner,
  type ProcessExit,
  type ProcessWatcher,
  type RunOptions,
} from "./run.ts";

const DEFAULT_TIMEOUT_MS = 60_000;
const DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const MAX_OUTPUT_BYTES = 8 * 1024 * 1024;
/** How long an output may stay silent after the command's end before it counts as finished (a grandchild may hold it). */
const DRAIN_IDLE_MS = 50;
const DRAIN_MAX_MS = 1000;
const POLL_MS = 200;

/**
 * Starts commands as children of this process: for tools and tests, where there is no keeper. Differs from the keeper in
 * that a log file is not bounded, and in that `netnsPath` needs `nsenter`, whose own failure shows as its exit code.
 * `path` is the PATH of commands whose environment has none.
 */
export function localRunner(path = DEFAULT_PATH): CommandRunner {
  return {
    async run(argv, options = {}) {
      const full = { ...options, env: { PATH: path, ...options.env } };
      if (options.logFile === undefined) return await runWith(argv, full, options.discardOutput ? "ignore" : "pipe");
      const log = await open(options.logFile, "a", 0o640);
      try {
        return await runWith(argv, full, log);
      } finally {
        await log.close();
      }
    },
  };
}

/** Starts a program that outlives this process: in a session of its own, its output appended to a file. What becomes of it
 *  is not told. */
export function startDetached(argv: readonly string[], logFile: string): void {
  const [program = "", ...args] = argv;
  const log = openSync(logFile, "a", 0o600);
  try {
    const child = spawn(program, args, { detached: true, cwd: "/", stdio: ["ignore", log, log] });
    child.on("error", () => {});
    child.unref();
  } finally {
    closeSync(log);
  }
}

/** Runs a short command on our own standard input, for what it does to the terminal there; nothing else happens until it has
 *  ended. True when it succeeded. */
export function runOnTerminal(argv: readonly string[]): boolean {
  const [program = "", ...args] = argv;
  const { status } = spawnSync(program, args, { stdio: ["inherit", "ignore", "ignore"], timeout: 2000 });
  return status === 0;
}

async function runWith(
  argv: readonly string[],
  options: RunOptions,
  output: "ignore" | "pipe" | FileHandle,
): Promise<CommandResult> {
  const [program, ...args] =
    options.netnsPath === undefined ? argv : ["nsenter", `--net=${options.netnsPath}`, ...argv];
  if (program === undefined || program === "") throw new Error("cannot start a command: argv is empty");
  const sink = typeof output === "string" ? output : output.fd;
  const child = spawn(program, args, {
    cwd: options.cwd,
    env: options.env,
    stdio: [options.stdin === undefined ? "ignore" : "pipe", sink, sink],
    // A session and process group of its own, so that a timeout ends all of it.
    detached: true,
  });
  const outputs = [new Output(child.stdout), new Output(child.stderr)] as const;
  // A command may end, or close its input, without having read all of it.
  child.stdin?.on("error", () => {});
  child.stdin?.end(options.stdin);
  const end = await ended(child, options.timeoutMs || DEFAULT_TIMEOUT_MS).catch((error: Error) => {
    throw new Error(`cannot start ${program}: ${error.message}`, { cause: error });
  });
  await Promise.all(outputs.map((one) => one.drain()));
  const result = {
    ...end,
    stdout: outputs[0].bytes(),
    stderr: outputs[1].bytes(),
    truncated: outputs.some((one) => one.truncated),
  };
  if (result.exitCode !== 0 && options.check !== false) throw new CommandError(argv, result);
  return result;
}

async function ended(
  child: ChildProcess,
  timeoutMs: number,
): Promise<Pick<CommandResult, "exitCode" | "signal" | "timedOut">> {
  const end = Promise.withResolvers<{ exitCode: number; signal: number }>();
  child.once("error", end.reject);
  child.once("exit", (code, signal) =>
    end.resolve({ exitCode: code ?? -1, signal: signal === null ? 0 : constants.signals[signal] }),
  );
  let timedOut = false;
  const timer = setTimeout(() => {
    if (child.pid === undefined) return;
    timedOut = true;
    process.kill(-child.pid, "SIGKILL");
  }, timeoutMs);
  try {
    const { exitCode, signal } = await end.promise;
    return { exitCode, signal, timedOut };
  } finally {
    clearTimeout(timer);
  }
}

/** What a command writes to one of its outputs, up to a limit; the rest is read and thrown away. */
class Output {
  readonly #stream: Readable | null;
  readonly #chunks: Buffer[] = [];
  readonly #closed = Promise.withResolvers<void>();
  #size = 0;
  #idle: NodeJS.Timeout | undefined;
  truncated = false;

  constructor(stream: Readable | null) {
    this.#stream = stream;
    if (stream === null) this.#closed.resolve();
    else stream.on("data", (chunk: Buffer) => this.#take(chunk)).once("close", () => this.#closed.resolve());
  }

  bytes(): Uint8Array {
    return new Uint8Array(Buffer.concat(this.#chunks));
  }

  /** Settles at the end of the stream, or once it has been silent. Preconditions: the command has ended. */
  async drain(): Promise<void> {
    const cut = () => this.#stream?.destroy();
    const last = setTimeout(cut, DRAIN_MAX_MS);
    this.#idle = setTimeout(cut, DRAIN_IDLE_MS);
    await this.#closed.promise;
    clearTimeout(last);
    clearTimeout(this.#idle);
  }

  #take(chunk: Buffer): void {
    const kept = chunk.subarray(0, MAX_OUTPUT_BYTES - this.#size);
    if (kept.length < chunk.length) this.truncated = true;
    if (kept.length > 0) this.#chunks.push(kept);
    this.#size += kept.length;
    this.#idle?.refresh();
  }
}

/**
 * Watches processes by looking at /proc five times a second; exit codes stay unknown (-1). For tools and tests. The file of a process is
 * held open: it is of no later one with that number, and to read it is one call.
 */
export function localWatcher(): ProcessWatcher & { close(): void } {
  const awaited = new Map<string, { stat: number; exit: PromiseWithResolvers<ProcessExit> }>();
  let timer: NodeJS.Timeout | undefined;
  const forget = (key: string, stat: number) => {
    closeSync(stat);
    awaited.delete(key);
    if (awaited.size > 0) return;
    clearInterval(timer);
    timer = undefined;
  };
  const look = () => {
    for (const [key, { stat, exit }] of awaited) {
      if (isAlive(stat)) continue;
      forget(key, stat);
      exit.resolve(unknownExit());
    }
  };
  return {
    exited(pid, startTicks) {
      // In this order: should the number become another process's in between, it is the old one that is watched.
      const stat = openStat(pid);
      if (stat === undefined) return Promise.resolve(unknownExit());
      const ticks = currentTicks(pid);
      const key = `${pid}:${ticks}`;
      const known = awaited.get(key);
      if (known !== undefined || ticks === undefined || (startTicks !== 0n && startTicks !== ticks)) {
        closeSync(stat);
        return known?.exit.promise ?? Promise.resolve(unknownExit());
      }
      const exit = Promise.withResolvers<ProcessExit>();
      awaited.set(key, { stat, exit });
      timer ??= setInterval(look, POLL_MS);
      return exit.promise;
    },
    /** Promises still pending stay so. */
    close() {
      for (const [key, { stat }] of awaited) forget(key, stat);
    },
  };
}

function unknownExit(): ProcessExit {
  return { exitCode: -1, signal: 0, atMs: Date.now() };
}
