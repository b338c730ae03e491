import { setTimeout as sleep } from "node:timers/promises";
import type { ApiClient, SandboxHandle } from "../api.ts";
import { NOTHING_KEPT, ProcessClient, type ProcessEvent, shellExitCode, terminalSize } from "../envd.ts";
import { RpcError } from "../errors.ts";
import { type CliIo, ENDING_CODES, onEnding } from "../io.ts";
import { keepAlive } from "../keepalive.ts";
import { type Lost, takeUpAgain } from "../take-up.ts";
import { InputSender } from "./input.ts";
import { DetachKeys } from "./keys.ts";
import { began, type Opened, type Program } from "./program.ts";
import { RawTerminal } from "./terminal.ts";

/** For what was typed before the keys that leave to arrive. */
const LAST_INPUT_MAX_MS = 2000;
const REDRAW_PAUSE_MS = 60;
/** Whoever wants to leave types Ctrl-Q right behind Ctrl-P; after this it was meant for the program. */
const CTRL_P_HOLD_MS = 500;

export type Ending =
  | { readonly kind: "exited"; readonly exitCode: number }
  | { readonly kind: "detached" }
  | { readonly kind: "signal"; readonly exitCode: number }
  | Lost;

export interface SessionOptions {
  /** Who the process calls are made as; absent = the template's default. */
  readonly user?: string;
  /** The sandbox is prolonged to this while attached; absent = not at all. */
  readonly timeoutS?: number;
  /** Whether Ctrl-P Ctrl-Q leaves, besides Enter ~ dot. */
  readonly ctrlPQ: boolean;
  /** Called once, when the program's output is connected. */
  onAttached?(pid: number): void;
}

/**
 * Puts the person's terminal on a program in the sandbox until one of them ends; the program outlives the terminal. Meanwhile
 * the sandbox's life is prolonged, whether somebody types or not, and a broken connection is taken up again as long as the
 * sandbox runs. Throws RpcError or CliError when the program could not be reached at all.
 */
export async function attachTerminal(
  io: CliIo,
  api: ApiClient,
  sandbox: SandboxHandle,
  program: Program,
  options: SessionOptions,
): Promise<Ending> {
  await using session = new TerminalSession(io, api, sandbox, options);
  return await session.run(program);
}

/** How a person leaves: thrown through the streams as their abort reason. */
class Leave extends Error {
  readonly ending: Ending;
  constructor(ending: Ending) {
    super(ending.kind);
    this.ending = ending;
  }
}

class TerminalSession implements AsyncDisposable {
  readonly #io: CliIo;
  readonly #api: ApiClient;
  readonly #id: string;
  readonly #client: ProcessClient;
  readonly #options: SessionOptions;
  readonly #stop = new AbortController();
  readonly #forget: () => void;
  readonly #keys: DetachKeys;
  readonly #input: InputSender;
  #terminal: RawTerminal | undefined;
  #pid: number | undefined;
  /** How much of all its output is on our terminal; undefined: the agent does not say. */
  #shownTo: number | undefined;
  #keepAlive: Promise<void> | undefined;
  #holding: NodeJS.Timeout | undefined;
  #resizing: Promise<void> = Promise.resolve();
  #leaving: Promise<void> | undefined;

  constructor(io: CliIo, api: ApiClient, sandbox: SandboxHandle, options: SessionOptions) {
    this.#io = io;
    this.#api = api;
    this.#id = sandbox.sandboxID;
    this.#client = new ProcessClient(api.http, sandbox, options.user);
    this.#options = options;
    this.#keys = new DetachKeys(options);
    this.#input = new InputSender(
      async (bytes) => {
        if (this.#pid !== undefined) await this.#client.sendInput(this.#pid, "pty", bytes, this.#stop.signal);
      },
      (high) => (high ? this.#terminal?.pauseInput() : this.#terminal?.resumeInput()),
    );
    this.#forget = onEnding(io, (name) => this.#leave({ kind: "signal", exitCode: ENDING_CODES[name] }));
  }

  async run(program: Program): Promise<Ending> {
    let ending: Ending;
    try {
      const opened = await program.open(this.#client, terminalSize(this.#io.stdout), this.#stop.signal);
      await this.#begin(opened);
      ending = await this.#follow(opened.events);
    } catch (error) {
      if (!(error instanceof Leave)) throw error;
      ending = error.ending;
    }
    if (ending.kind !== "exited") await this.#terminal?.softReset();
    return ending;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stop.abort(new Leave({ kind: "detached" }));
    clearTimeout(this.#holding);
    this.#terminal?.[Symbol.dispose]();
    this.#forget();
    await Promise.all([this.#keepAlive, this.#input.idle(), this.#resizing, this.#leaving]);
  }

  async #begin({ pid, offset, isStale }: Opened): Promise<void> {
    this.#pid = pid;
    this.#shownTo = offset;
    if (this.#terminal === undefined) {
      this.#terminal = new RawTerminal(this.#io, {
        input: (bytes) => this.#type(bytes),
        resize: () => this.#resize(),
        end: () => this.#leave({ kind: "signal", exitCode: ENDING_CODES.SIGHUP }),
      });
      const { timeoutS } = this.#options;
      if (timeoutS !== undefined) this.#keepAlive = keepAlive(this.#api, this.#id, timeoutS, this.#stop.signal);
      this.#options.onAttached?.(pid);
    }
    if (isStale) await this.#redraw();
  }

  /** Shows what the program says until it ends; takes a broken connection up again. */
  async #follow(first: AsyncGenerator<ProcessEvent, void>): Promise<Ending> {
    let events = first;
    for (;;) {
      try {
        for await (const event of events) {
          if (event.kind === "output") await this.#show(event.bytes);
          else if (event.kind === "end") return { kind: "exited", exitCode: shellExitCode(event.end) };
        }
        return { kind: "lost", why: "the sandbox did not say how the program ended" };
      } catch (error) {
        if (!(error instanceof RpcError)) throw error;
        const next = await this.#reconnect(error);
        if ("kind" in next) return next;
        events = next;
      }
    }
  }

  async #show(bytes: Buffer): Promise<void> {
    await this.#terminal?.write(bytes);
    if (this.#shownTo !== undefined) this.#shownTo += bytes.length;
  }

  /** The same program's events again, or why there is nothing to come back to. */
  async #reconnect(broken: RpcError): Promise<AsyncGenerator<ProcessEvent, void> | Lost> {
    const { signal } = this.#stop;
    const open = async (): Promise<Opened> => {
      const shownTo = this.#shownTo ?? NOTHING_KEPT;
      const opened = await began(this.#client.attach(this.#pid ?? 0, shownTo, signal), shownTo);
      await this.#begin(opened);
      return opened;
    };
    const taken = await takeUpAgain(this.#api, this.#id, broken, signal, open, async () => {
      await this.#terminal?.note("connection lost, trying again; Enter ~ . leaves");
    });
    return "kind" in taken ? taken : taken.events;
  }

  #type(bytes: Buffer): void {
    if (this.#leaving !== undefined) return;
    clearTimeout(this.#holding);
    const { pass, detach } = this.#keys.take(bytes);
    this.#input.push(pass);
    if (this.#keys.holdsCtrlP) {
      this.#holding = setTimeout(() => this.#input.push(this.#keys.release()), CTRL_P_HOLD_MS);
    }
    if (detach) this.#leaving ??= this.#leaveBehindInput();
  }

  async #leaveBehindInput(): Promise<void> {
    const late = sleep(LAST_INPUT_MAX_MS, undefined, { signal: this.#stop.signal }).catch(() => {});
    await Promise.race([this.#input.idle(), late]);
    this.#leave({ kind: "detached" });
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

  /** Throws the reason when the session is left meanwhile. */
  async #wait(ms: number): Promise<void> {
    await sleep(ms, undefined, { signal: this.#stop.signal }).catch(() => {});
    this.#stop.signal.throwIfAborted();
  }
}
