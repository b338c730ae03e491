import { setTimeout as sleep } from "node:timers/promises";
import type { ApiClient, SandboxHandle } from "../api.ts";
import { ProcessClient, type ProcessEvent, shellExitCode } from "../envd.ts";
import { ApiError, CliError, EXIT, RpcError } from "../errors.ts";
import type { CliIo } from "../io.ts";
import { InputSender } from "./input.ts";
import { DetachKeys } from "./keys.ts";
import { RawTerminal } from "./terminal.ts";

/** Marks the one shell of a sandbox that people come back to. */
export const SHELL_TAG = "aenv-shell";

const KEEP_ALIVE_EVERY_MS = 60_000;
/** What an attached terminal leaves a sandbox at least; must outlast the wait between two prolongations. */
const KEEP_ALIVE_MIN_S = 120;
/** The server prolongs by no more at a time. */
export const REFRESH_MAX_S = 3600;
const SIGNAL_CODES = { SIGINT: 130, SIGTERM: 143, SIGHUP: 129 } as const;
const RECONNECT_TRIES = 12;
const RECONNECT_MAX_WAIT_MS = 5000;
const REDRAW_PAUSE_MS = 60;

export type Ending =
  | { readonly kind: "exited"; readonly exitCode: number }
  | { readonly kind: "detached" }
  | { readonly kind: "signal"; readonly exitCode: number }
  | { readonly kind: "paused" }
  | { readonly kind: "gone" }
  | { readonly kind: "lost"; readonly why: string };

export interface ShellOptions {
  /** How long the sandbox should live after the terminal leaves; it is prolonged to that while attached. */
  readonly timeoutS: number;
  /** Called once, when the shell's output is connected. */
  onAttached?(): void;
}

/**
 * Puts the person's terminal on the sandbox's shell until one of them ends: the shell that is there, else a new one. The
 * shell outlives the terminal. While attached the sandbox's life is prolonged, whether somebody types or not, and a broken
 * connection is taken up again as long as the sandbox runs. Throws CliError when the shell could not be reached at all.
 */
export async function attachShell(
  io: CliIo,
  api: ApiClient,
  sandbox: SandboxHandle,
  options: ShellOptions,
): Promise<Ending> {
  await using session = new ShellSession(io, api, sandbox, options);
  return await session.run();
}

/** How a person leaves: thrown through the streams as their abort reason. */
class Leave extends Error {
  readonly ending: Ending;
  constructor(ending: Ending) {
    super(ending.kind);
    this.ending = ending;
  }
}

function isMissingProgram(error: unknown): boolean {
  return error instanceof RpcError && error.answered && error.code === "not_found";
}

class ShellSession implements AsyncDisposable {
  readonly #io: CliIo;
  readonly #api: ApiClient;
  readonly #id: string;
  readonly #client: ProcessClient;
  readonly #options: ShellOptions;
  readonly #stop = new AbortController();
  readonly #forget: (() => void)[];
  readonly #keys = new DetachKeys();
  readonly #input: InputSender;
  #terminal: RawTerminal | undefined;
  #pid: number | undefined;
  #keepAlive: Promise<void> | undefined;
  #resizing: Promise<void> = Promise.resolve();

  constructor(io: CliIo, api: ApiClient, sandbox: SandboxHandle, options: ShellOptions) {
    this.#io = io;
    this.#api = api;
    this.#id = sandbox.sandboxID;
    this.#client = new ProcessClient(api.http, sandbox);
    this.#options = options;
    this.#input = new InputSender(
      async (bytes) => {
        if (this.#pid !== undefined) await this.#client.sendInput(this.#pid, "pty", bytes, this.#stop.signal);
      },
      (high) => (high ? this.#terminal?.pauseInput() : this.#terminal?.resumeInput()),
    );
    this.#forget = (["SIGINT", "SIGTERM", "SIGHUP"] as const).map((name) =>
      io.onSignal(name, () => this.#leave({ kind: "signal", exitCode: SIGNAL_CODES[name] })),
    );
  }

  async run(): Promise<Ending> {
    let ending: Ending;
    try {
      ending = await this.#follow(await this.#open());
    } catch (error) {
      if (!(error instanceof Leave)) throw error;
      ending = error.ending;
    }
    if (ending.kind !== "exited") await this.#terminal?.softReset();
    return ending;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stop.abort(new Leave({ kind: "detached" }));
    this.#terminal?.[Symbol.dispose]();
    for (const forget of this.#forget) forget();
    await Promise.all([this.#keepAlive, this.#input.idle(), this.#resizing]);
  }

  /** The events of the shell that is there, else of a new one. The first event has been read: it is the start. */
  async #open(): Promise<AsyncGenerator<ProcessEvent, void>> {
    const there = (await this.#client.list()).filter(({ tag }) => tag === SHELL_TAG).at(-1);
    if (there !== undefined) {
      const events = await this.#begin(this.#client.attach(there.pid, this.#stop.signal)).catch((error) => {
        // It ended between the two calls.
        if (error instanceof RpcError && error.code === "not_found") return undefined;
        throw error;
      });
      if (events !== undefined) {
        await this.#redraw();
        return events;
      }
    }
    try {
      return await this.#begin(this.#startShell("/bin/bash"));
    } catch (error) {
      if (!isMissingProgram(error)) throw error;
    }
    try {
      return await this.#begin(this.#startShell("/bin/sh"));
    } catch (error) {
      if (!isMissingProgram(error)) throw error;
      throw new CliError(EXIT.notFound, `${this.#id} has no shell: neither /bin/bash nor /bin/sh is in its image`, {
        hint: "`aenv start TEMPLATE --detach` starts it without one, `aenv exec ID PROGRAM` runs what is there",
        cause: error,
      });
    }
  }

  #startShell(cmd: string): AsyncGenerator<ProcessEvent, void> {
    const { env, stdout } = this.#io;
    const envs: Record<string, string> = { TERM: env.TERM || "xterm-256color", LANG: "C.UTF-8" };
    if (env.COLORTERM) envs.COLORTERM = env.COLORTERM;
    const terminal = { cols: stdout.columns || 80, rows: stdout.rows || 24 };
    return this.#client.start(
      { cmd, args: ["-i", "-l"], envs, terminal, tag: SHELL_TAG, stdin: true },
      this.#stop.signal,
    );
  }

  async #begin(events: AsyncGenerator<ProcessEvent, void>): Promise<AsyncGenerator<ProcessEvent, void>> {
    const first = await events.next();
    if (first.done || first.value.kind !== "start") {
      throw new CliError(EXIT.failure, "the sandbox's agent did not say that the shell has started");
    }
    this.#pid = first.value.pid;
    if (this.#terminal === undefined) {
      this.#terminal = new RawTerminal(this.#io, {
        input: (bytes) => this.#type(bytes),
        resize: () => this.#resize(),
        end: () => this.#leave({ kind: "signal", exitCode: SIGNAL_CODES.SIGHUP }),
      });
      this.#keepAlive = this.#keepSandboxAlive();
      this.#options.onAttached?.();
    }
    return events;
  }

  /** Shows what the shell says until it ends; takes a broken connection up again. */
  async #follow(first: AsyncGenerator<ProcessEvent, void>): Promise<Ending> {
    let events = first;
    for (;;) {
      try {
        for await (const event of events) {
          if (event.kind === "output") await this.#terminal?.write(event.bytes);
          else if (event.kind === "end") return { kind: "exited", exitCode: shellExitCode(event.end) };
        }
        return { kind: "lost", why: "the sandbox did not say how the shell ended" };
      } catch (error) {
        if (!(error instanceof RpcError)) throw error;
        const next = await this.#reconnect(error);
        if ("kind" in next) return next;
        events = next;
      }
    }
  }

  /** The same shell's events again, or why there is nothing to come back to. */
  async #reconnect(broken: RpcError): Promise<AsyncGenerator<ProcessEvent, void> | Ending> {
    let why: Error = broken;
    for (let tries = 0; tries < RECONNECT_TRIES; tries += 1) {
      const waitMs = Math.min(RECONNECT_MAX_WAIT_MS, 100 * 2 ** tries);
      if (tries > 0) await this.#wait(waitMs);
      if (tries === 2) await this.#terminal?.note("connection lost, trying again; Enter ~ . leaves");
      try {
        const { state } = await this.#api.getSandbox(this.#id, this.#stop.signal);
        if (state === "paused") return { kind: "paused" };
        const events = await this.#begin(this.#client.attach(this.#pid ?? 0, this.#stop.signal));
        await this.#redraw();
        return events;
      } catch (error) {
        this.#stop.signal.throwIfAborted();
        if (error instanceof ApiError && error.status === 404) return { kind: "gone" };
        if (error instanceof RpcError && error.code === "not_found") {
          return { kind: "lost", why: "the shell ended while the connection was down" };
        }
        if (!(error instanceof CliError)) throw error;
        why = error;
      }
    }
    return { kind: "lost", why: why.message };
  }

  #type(bytes: Buffer): void {
    const { pass, detach } = this.#keys.take(bytes);
    this.#input.push(pass);
    if (detach) this.#leave({ kind: "detached" });
  }

  #leave(ending: Ending): void {
    this.#stop.abort(new Leave(ending));
  }

  /** Sizes arrive in bursts while a window is dragged: one call at a time, each with the size of its moment. */
  #resize(): void {
    this.#resizing = this.#resizing.then(() => this.#setSize(0)).catch(() => {});
  }

  async #setSize(lessRows: number): Promise<void> {
    if (this.#pid === undefined || this.#terminal === undefined || this.#stop.signal.aborted) return;
    const { cols, rows } = this.#terminal.size;
    await this.#client.resize(this.#pid, { cols, rows: Math.max(1, rows - lessRows) });
  }

  /** Programs draw anew when their terminal changes its size; so it does, to another one and back. */
  async #redraw(): Promise<void> {
    try {
      await this.#setSize(1);
      await this.#wait(REDRAW_PAUSE_MS);
      await this.#setSize(0);
    } catch (error) {
      // Not worth losing the shell for; a broken connection shows on the stream as well.
      if (!(error instanceof RpcError)) throw error;
    }
  }

  async #keepSandboxAlive(): Promise<void> {
    const durationS = Math.min(REFRESH_MAX_S, Math.max(KEEP_ALIVE_MIN_S, this.#options.timeoutS));
    while (!this.#stop.signal.aborted) {
      // A refusal means that the sandbox is paused or gone, which the stream tells too.
      await this.#api.refresh(this.#id, durationS, this.#stop.signal).catch(() => {});
      await sleep(KEEP_ALIVE_EVERY_MS, undefined, { signal: this.#stop.signal }).catch(() => {});
    }
  }

  /** Throws the reason when the session is left meanwhile. */
  async #wait(ms: number): Promise<void> {
    await sleep(ms, undefined, { signal: this.#stop.signal }).catch(() => {});
    this.#stop.signal.throwIfAborted();
  }
}
