import { once } from "node:events";
import type { Readable } from "node:stream";
import { type ProcessClient, type ProcessEnd, type StartProcess, shellExitCode } from "./envd.ts";
import { BrokenPipeError, CliError, EXIT, type RpcCode, RpcError } from "./errors.ts";
import { type CliIo, writeAll } from "./io.ts";

const CHUNK_BYTES = 256 * 1024;

/**
 * Runs one command with our own standard streams as its own and returns its exit code as a shell would give it.
 * Output is taken as fast as our reader takes it; input is sent as fast as the command takes it. Ends when the command
 * does, whatever our input is doing. Throws RpcError or CliError when the command could not be run to its end.
 */
export async function runRemote(io: CliIo, client: ProcessClient, process: StartProcess): Promise<number> {
  await using run = new RemoteRun(io, client);
  try {
    return await run.toEnd(process);
  } catch (error) {
    throw error instanceof RpcError ? describeFailure(error, run.started, process.cmd) : error;
  }
}

class RemoteRun implements AsyncDisposable {
  readonly #io: CliIo;
  readonly #client: ProcessClient;
  readonly #stop = new AbortController();
  readonly #forget: (() => void)[];
  #pid: number | undefined;
  #signals: ("SIGINT" | "SIGTERM" | "SIGHUP")[] = [];
  #tasks: Promise<void>[] = [];

  constructor(io: CliIo, client: ProcessClient) {
    this.#io = io;
    this.#client = client;
    this.#forget = (["SIGINT", "SIGTERM", "SIGHUP"] as const).map((name) =>
      io.onSignal(name, () => this.#onSignal(name)),
    );
  }

  get started(): boolean {
    return this.#pid !== undefined;
  }

  async toEnd(process: StartProcess): Promise<number> {
    const events = this.#client.start(process, this.#stop.signal);
    for await (const event of events) {
      if (event.kind === "start") this.#onStart(event.pid, process.stdin);
      else if (event.kind === "end") return this.#exitCode(event.end);
      else if (!(await this.#show(event.stream === "stderr" ? this.#io.stderr : this.#io.stdout, event.bytes))) {
        return EXIT.brokenPipe;
      }
    }
    throw new CliError(EXIT.execFailed, "the sandbox did not say how the command ended");
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const forget of this.#forget) forget();
    this.#stop.abort(new CliError(EXIT.interrupted, "stopped"));
    await Promise.all(this.#tasks);
  }

  #onStart(pid: number, stdin: boolean): void {
    this.#pid = pid;
    if (stdin) this.#tasks.push(this.#feed(pid));
    // Asked to end while the start was under way.
    if (this.#signals.length > 0) this.#terminate(pid);
  }

  /** False: our reader has gone. The command gets to know as it would in a pipe: it is ended. */
  async #show(stream: CliIo["stdout"], bytes: Buffer): Promise<boolean> {
    try {
      await writeAll(stream, bytes);
      return true;
    } catch (error) {
      if (!(error instanceof BrokenPipeError)) throw error;
      if (stream === this.#io.stderr) return true;
      if (this.#pid !== undefined) await this.#client.signal(this.#pid, "SIGKILL").catch(() => {});
      return false;
    }
  }

  #exitCode(end: ProcessEnd): number {
    // Only SIGTERM can be sent; who pressed Ctrl-C expects the code of Ctrl-C.
    if (end.exitCode === undefined && this.#signals[0] === "SIGINT") return EXIT.interrupted;
    return shellExitCode(end);
  }

  #onSignal(name: "SIGINT" | "SIGTERM" | "SIGHUP"): void {
    this.#signals.push(name);
    if (this.#pid !== undefined) this.#terminate(this.#pid);
    else if (this.#signals.length > 1) this.#fail(new CliError(EXIT.interrupted, "interrupted"));
  }

  #terminate(pid: number): void {
    const signal = this.#signals.length > 1 ? "SIGKILL" : "SIGTERM";
    this.#tasks.push(
      this.#client.signal(pid, signal).catch((error) => {
        // Gone already: its end is on the way. Anything else, and waiting on would ignore the person.
        if (!(error instanceof RpcError && error.code === "not_found")) this.#fail(error);
      }),
    );
  }

  async #feed(pid: number): Promise<void> {
    try {
      for await (const chunk of chunksOf(this.#io.stdin, this.#stop.signal)) {
        await this.#client.sendInput(pid, "stdin", chunk, this.#stop.signal);
      }
      await this.#client.closeStdin(pid, this.#stop.signal);
    } catch (error) {
      if (this.#stop.signal.aborted) return;
      // The command takes no more input: it closed it, or has ended. Everything else would leave it with half of its input
      // and no way to know.
      if (error instanceof RpcError && (error.code === "not_found" || error.code === "failed_precondition")) return;
      await this.#client.signal(pid, "SIGKILL").catch(() => {});
      this.#fail(
        error instanceof CliError ? error : new CliError(EXIT.failure, `cannot read standard input: ${error}`),
      );
    }
  }

  #fail(error: unknown): void {
    this.#stop.abort(error);
  }
}

/** What there is, in pieces of bounded size, as it comes; ends at end of file, throws when the input cannot be read. */
async function* chunksOf(input: Readable, signal: AbortSignal): AsyncGenerator<Buffer, void> {
  // A failure between two waits is found in `errored`; without a listener it would end the process.
  input.on("error", () => {});
  for (;;) {
    if (input.errored) throw input.errored;
    const chunk = input.read() as Buffer | null;
    if (chunk !== null) {
      for (let at = 0; at < chunk.length; at += CHUNK_BYTES) yield chunk.subarray(at, at + CHUNK_BYTES);
    } else if (input.readableEnded || input.destroyed) {
      return;
    } else {
      const waiting = new AbortController();
      const until = { signal: AbortSignal.any([signal, waiting.signal]) };
      const news = ["readable", "end", "close"].map((name) => once(input, name, until));
      try {
        await Promise.race(news);
      } finally {
        waiting.abort();
        await Promise.allSettled(news);
      }
    }
  }
}

/** A command that could not be started has the code a shell would give; every other failure is aenv's. */
function describeFailure(error: RpcError, started: boolean, cmd: string): CliError {
  const code = STARTING_CODES[error.code];
  if (started || !error.answered || code === undefined) return error;
  return new CliError(code, `cannot run ${cmd}: ${error.message}`, { cause: error });
}

const STARTING_CODES: Partial<Record<RpcCode, number>> = {
  not_found: EXIT.commandNotFound,
  permission_denied: EXIT.notExecutable,
};
