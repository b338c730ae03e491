import { setTimeout as sleep } from "node:timers/promises";
import type { ApiClient, SandboxHandle } from "./api.ts";
import {
  describeStart,
  ProcessClient,
  type ProcessEnd,
  type ProcessEvent,
  type StartProcess,
  shellExitCode,
  terminalSize,
} from "./envd.ts";
import { BrokenPipeError, CliError, EXIT, RpcError } from "./errors.ts";
import { type CliIo, ENDING_CODES, type EndingSignal, onEnding, UNREAD_MS, writeAll } from "./io.ts";
import { chunksOf } from "./streams.ts";
import { takeUpAgain, whyLost } from "./take-up.ts";

const TAKE_UP_EVERY_MS = 1000;

export interface RemoteTarget {
  readonly api: ApiClient;
  readonly sandbox: SandboxHandle;
  /** Who the command runs as; absent = the template's default. */
  readonly user: string | undefined;
  /** Whether the command outlives us, so that one can come back to it. */
  readonly canComeBack: boolean;
}

/**
 * Runs one command with our own standard streams as its own and returns its exit code as a shell would give it.
 * Output is taken as fast as our reader takes it; input is sent as fast as the command takes it. Ends when the command
 * does, whatever our input is doing. Throws RpcError or CliError when the command could not be run to its end.
 */
export async function runRemote(io: CliIo, target: RemoteTarget, process: StartProcess): Promise<number> {
  await using run = new RemoteRun(io, target);
  try {
    return await run.toEnd(process);
  } catch (error) {
    throw run.started ? error : describeStart(error, process.cmd);
  }
}

/**
 * Shows the output of a process that runs already, what is kept of it and what comes, and returns its exit code. A signal leaves it running: 130.
 * Throws RpcError.
 */
export async function watchRemote(io: CliIo, client: ProcessClient, pid: number): Promise<number> {
  const left = new CliError(EXIT.interrupted, `interrupted; process ${pid} goes on`);
  const stop = new AbortController();
  const forget = onEnding(io, () => stop.abort(left));
  try {
    for await (const event of client.attach(pid, 0, stop.signal)) {
      if (event.kind === "end") return shellExitCode(event.end);
      if (event.kind === "output") {
        await writeAll(event.stream === "stderr" ? io.stderr : io.stdout, event.bytes, stop.signal);
      }
    }
    throw new CliError(EXIT.execFailed, "the sandbox did not say how the process ended");
  } catch (error) {
    if (error instanceof BrokenPipeError) return EXIT.brokenPipe;
    throw error;
  } finally {
    forget();
    stop.abort(left);
  }
}

class RemoteRun implements AsyncDisposable {
  readonly #io: CliIo;
  readonly #target: RemoteTarget;
  readonly #client: ProcessClient;
  readonly #stop = new AbortController();
  readonly #forget: (() => void)[];
  #pid: number | undefined;
  /** Bytes of the command's output that are with our readers, or on their way; `#isWriting`: to one that has not taken them yet. */
  #shown = 0;
  #isWriting = false;
  /** When a broken connection was last to be taken up. */
  #tookUpMs = Number.NEGATIVE_INFINITY;
  #signals: EndingSignal[] = [];
  #tasks: Promise<void>[] = [];

  constructor(io: CliIo, target: RemoteTarget) {
    this.#io = io;
    this.#target = target;
    this.#client = new ProcessClient(target.api.http, target.sandbox, target.user);
    this.#forget = [onEnding(io, (name) => this.#onSignal(name))];
  }

  get started(): boolean {
    return this.#pid !== undefined;
  }

  async toEnd(process: StartProcess): Promise<number> {
    let events = this.#client.start(process, this.#stop.signal);
    for (;;) {
      try {
        return await this.#follow(events, process);
      } catch (error) {
        if (this.#pid === undefined || !(error instanceof RpcError)) throw error;
        await this.#slowDown();
        events = await this.#takeUpAgain(this.#pid, error);
      }
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const forget of this.#forget) forget();
    this.#stop.abort(new CliError(EXIT.interrupted, "stopped"));
    await Promise.all(this.#tasks);
  }

  async #follow(events: AsyncGenerator<ProcessEvent, void>, process: StartProcess): Promise<number> {
    for await (const event of events) {
      if (event.kind === "start") this.#onStart(event.pid, process);
      else if (event.kind === "end") return this.#exitCode(event.end);
      else if (!(await this.#show(event.stream === "stderr" ? this.#io.stderr : this.#io.stdout, event.bytes))) {
        return EXIT.brokenPipe;
      }
    }
    throw new CliError(EXIT.execFailed, "the sandbox did not say how the command ended");
  }

  /** Connections that break again and again at once are not to keep anybody busy. */
  async #slowDown(): Promise<void> {
    const nowMs = performance.now();
    if (nowMs - this.#tookUpMs < TAKE_UP_EVERY_MS) {
      await sleep(TAKE_UP_EVERY_MS, undefined, { signal: this.#stop.signal }).catch(() => {});
    }
    this.#stop.signal.throwIfAborted();
    this.#tookUpMs = nowMs;
  }

  /** The command's events from where they broke off. Throws CliError that says why there are none, or not all. */
  async #takeUpAgain(pid: number, broken: RpcError): Promise<AsyncGenerator<ProcessEvent, void>> {
    const { api, sandbox, canComeBack } = this.#target;
    const id = sandbox.sandboxID;
    const back = canComeBack ? { hint: `\`aenv attach ${id} ${pid}\` comes back to it` } : {};
    const taken = await takeUpAgain(api, id, broken, this.#stop.signal, async () => {
      const events = this.#client.attach(pid, this.#shown, this.#stop.signal);
      const first = await events.next();
      const offset = first.done || first.value.kind !== "start" ? undefined : first.value.offset;
      return { events, offset };
    });
    if ("kind" in taken) {
      throw new CliError(
        EXIT.unavailable,
        whyLost(id, taken),
        taken.kind === "paused" || taken.kind === "lost" ? back : {},
      );
    }
    if (taken.offset === this.#shown) return taken.events;
    await taken.events.return();
    const what = taken.offset === undefined ? "some" : `${taken.offset - this.#shown} bytes`;
    throw new CliError(
      EXIT.unavailable,
      `the connection to process ${pid} in ${id} broke, and ${what} of its output are not kept any more; it goes on`,
      back,
    );
  }

  #onStart(pid: number, { stdin, terminal }: StartProcess): void {
    this.#pid = pid;
    if (stdin) this.#tasks.push(this.#feed(pid));
    if (terminal !== undefined) this.#forget.push(this.#io.onSignal("SIGWINCH", () => this.#resize(pid)));
    // Asked to end while the start was under way.
    if (this.#signals.length > 0) this.#terminate(pid);
  }

  #resize(pid: number): void {
    // Of an ended process, or too late to matter.
    this.#tasks.push(this.#client.resize(pid, terminalSize(this.#io.stdout)).catch(() => {}));
  }

  /** False: our reader has gone. The command gets to know as it would in a pipe: it is ended. */
  async #show(stream: CliIo["stdout"], bytes: Buffer): Promise<boolean> {
    this.#shown += bytes.length;
    this.#isWriting = true;
    try {
      await writeAll(stream, bytes, this.#stop.signal);
      return true;
    } catch (error) {
      if (!(error instanceof BrokenPipeError)) throw error;
      if (stream === this.#io.stderr) return true;
      if (this.#pid !== undefined) await this.#client.signal(this.#pid, "SIGKILL").catch(() => {});
      return false;
    } finally {
      this.#isWriting = false;
    }
  }

  #exitCode(end: ProcessEnd): number {
    // Only SIGTERM can be sent; who pressed Ctrl-C expects the code of Ctrl-C.
    if (end.exitCode === undefined && this.#signals[0] === "SIGINT") return EXIT.interrupted;
    return shellExitCode(end);
  }

  #onSignal(name: EndingSignal): void {
    this.#signals.push(name);
    if (this.#signals.length === 1) this.#tasks.push(this.#giveUpUnread(ENDING_CODES[name]));
    if (this.#pid !== undefined) this.#terminate(this.#pid);
    else if (this.#signals.length > 1) this.#fail(new CliError(ENDING_CODES[name], "interrupted"));
  }

  /** A command's end comes behind its output: where nobody reads that, it never does. */
  async #giveUpUnread(exitCode: number): Promise<void> {
    while (!this.#stop.signal.aborted) {
      const before = this.#shown;
      await sleep(UNREAD_MS, undefined, { signal: this.#stop.signal }).catch(() => {});
      if (this.#isWriting && this.#shown === before) {
        this.#fail(new CliError(exitCode, "interrupted; what the command said is not being read"));
      }
    }
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
