import type { IncomingHttpHeaders } from "node:http";
import type { SandboxHandle } from "./api.ts";
import { ConnectClient } from "./connect.ts";
import { CliError, EXIT, type RpcCode, RpcError } from "./errors.ts";
import type { HttpClient } from "./http.ts";

const AGENT_PORT = 49983;
/** The agent's own: where in all of a process's output a stream begins, and is to begin. */
const OFFSET_HEADER = "aenv-output-offset";
/** For an attach that wants nothing of what is kept. */
export const NOTHING_KEPT = Number.MAX_SAFE_INTEGER;
/** Silence of an agent that was asked for a sign of life every 15 s. */
const IDLE_MS = 45_000;
const CALL_TIMEOUT_MS = 30_000;

export interface TerminalSize {
  readonly cols: number;
  readonly rows: number;
}

/** What leads a request to a sandbox's agent, and lets it in. `user`: who it acts as; absent = the template's default. */
export function agentHeaders(sandbox: SandboxHandle, user?: string): Record<string, string> {
  return {
    "e2b-sandbox-id": sandbox.sandboxID,
    "e2b-sandbox-port": String(AGENT_PORT),
    ...(sandbox.envdAccessToken ? { "x-access-token": sandbox.envdAccessToken } : {}),
    ...(user === undefined ? {} : { authorization: `Basic ${Buffer.from(`${user}:`).toString("base64")}` }),
  };
}

/** Of our terminal; the usual one where there is none or it does not say. */
export function terminalSize({ columns, rows }: { readonly columns?: number; readonly rows?: number }): TerminalSize {
  return { cols: columns || 80, rows: rows || 24 };
}

export interface StartProcess {
  readonly cmd: string;
  readonly args: readonly string[];
  readonly envs?: Readonly<Record<string, string>>;
  readonly cwd?: string;
  /** Runs it on a terminal of this size instead of on pipes. */
  readonly terminal?: TerminalSize;
  readonly tag?: string;
  /** False: its standard input is empty. */
  readonly stdin: boolean;
}

export interface RunningProcess {
  readonly pid: number;
  readonly tag?: string;
  readonly config: {
    readonly cmd: string;
    readonly args: readonly string[];
    readonly envs: Readonly<Record<string, string>>;
    readonly cwd?: string;
  };
}

export type ProcessEvent =
  /** `offset`: of all output since the process's start, where the following begins; agents that keep none do not say. */
  | { readonly kind: "start"; readonly pid: number; readonly offset?: number }
  | { readonly kind: "output"; readonly stream: "stdout" | "stderr" | "terminal"; readonly bytes: Buffer }
  | { readonly kind: "end"; readonly end: ProcessEnd };

export interface ProcessEnd {
  /** Undefined when a signal ended it. */
  readonly exitCode?: number;
  /** As the agent words it: `exit status 3`, `signal: killed`. */
  readonly status: string;
}

/** The processes inside one sandbox, reached through the server. Every method throws RpcError. */
export class ProcessClient {
  readonly #connect: ConnectClient;

  /** `user`: who the processes run as; absent = the template's default. */
  constructor(http: HttpClient, sandbox: SandboxHandle, user?: string) {
    this.#connect = new ConnectClient(http, agentHeaders(sandbox, user));
  }

  async list(): Promise<RunningProcess[]> {
    const answer = (await this.#call("List", {})) as { processes?: WireProcess[] };
    return (answer.processes ?? []).map(({ pid = 0, tag, config }) => ({
      pid,
      ...(tag === undefined ? {} : { tag }),
      // Empty values are left out on the wire.
      config: { cmd: "", args: [], envs: {}, ...config },
    }));
  }

  /** The first event is its start, the last one its end. The process outlives the stream. */
  start(process: StartProcess, signal: AbortSignal): AsyncGenerator<ProcessEvent, void> {
    const { cmd, args, envs, cwd, terminal, tag, stdin } = process;
    return this.#events(
      "Start",
      {
        process: { cmd, args, envs, cwd },
        ...(terminal === undefined ? {} : { pty: { size: terminal } }),
        tag,
        stdin,
      },
      signal,
    );
  }

  /** As start, for a process that runs already: what is kept of its output from an offset on, then the rest. */
  async *attach(pid: number, from: number, signal: AbortSignal): AsyncGenerator<ProcessEvent, void> {
    let offset: number | undefined;
    const onHeaders = (headers: IncomingHttpHeaders): void => {
      const said = headers[OFFSET_HEADER];
      if (typeof said === "string" && /^\d{1,15}$/.test(said)) offset = Number(said);
    };
    const options = { headers: { [OFFSET_HEADER]: String(from) }, onHeaders };
    for await (const event of this.#events("Connect", { process: { pid } }, signal, options)) {
      yield event.kind === "start" && offset !== undefined ? { ...event, offset } : event;
    }
  }

  /** Returns when the process's pipe or terminal has taken the bytes, which may be never. */
  async sendInput(pid: number, to: "stdin" | "pty", bytes: Uint8Array, signal: AbortSignal): Promise<void> {
    const base64 = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString("base64");
    await this.#connect.unary(
      "/process.Process/SendInput",
      { process: { pid }, input: { [to]: base64 } },
      { timeoutMs: 0, signal },
    );
  }

  async closeStdin(pid: number, signal: AbortSignal): Promise<void> {
    await this.#call("CloseStdin", { process: { pid } }, signal);
  }

  async resize(pid: number, size: TerminalSize): Promise<void> {
    await this.#call("Update", { process: { pid }, pty: { size } });
  }

  /** Gives the process's terminal the size of ours; false: it runs without one, or not any more. */
  async hasTerminal(pid: number, ours: { readonly columns?: number; readonly rows?: number }): Promise<boolean> {
    try {
      await this.resize(pid, terminalSize(ours));
      return true;
    } catch (error) {
      if (error instanceof RpcError && error.answered) return false;
      throw error;
    }
  }

  async signal(pid: number, name: "SIGTERM" | "SIGKILL"): Promise<void> {
    await this.#call("SendSignal", { process: { pid }, signal: `SIGNAL_${name}` });
  }

  #call(method: string, message: unknown, signal?: AbortSignal): Promise<unknown> {
    const options = { timeoutMs: CALL_TIMEOUT_MS, ...(signal === undefined ? {} : { signal }) };
    return this.#connect.unary(`/process.Process/${method}`, message, options);
  }

  async *#events(
    method: string,
    message: unknown,
    signal: AbortSignal,
    options: Pick<Parameters<ConnectClient["stream"]>[2], "headers" | "onHeaders"> = {},
  ): AsyncGenerator<ProcessEvent, void> {
    const stream = this.#connect.stream(`/process.Process/${method}`, message, { ...options, signal, idleMs: IDLE_MS });
    for await (const answer of stream) {
      const event = eventOf((answer as { event?: WireEvent }).event ?? {});
      if (event !== undefined) yield event;
    }
  }
}

interface WireProcess {
  readonly pid?: number;
  readonly tag?: string;
  readonly config?: Partial<RunningProcess["config"]>;
}

interface WireEvent {
  readonly start?: { readonly pid?: number };
  readonly data?: { readonly stdout?: string; readonly stderr?: string; readonly pty?: string };
  readonly end?: { readonly exitCode?: number; readonly exited?: boolean; readonly status?: string };
}

function eventOf(event: WireEvent): ProcessEvent | undefined {
  if (event.start) return { kind: "start", pid: event.start.pid ?? 0 };
  if (event.data) {
    const { stdout, stderr, pty } = event.data;
    if (stdout !== undefined) return output("stdout", stdout);
    if (stderr !== undefined) return output("stderr", stderr);
    if (pty !== undefined) return output("terminal", pty);
  }
  if (event.end) {
    const { exitCode = 0, exited = false, status = "" } = event.end;
    return { kind: "end", end: exited ? { exitCode, status } : { status } };
  }
  return undefined;
}

function output(stream: "stdout" | "stderr" | "terminal", base64: string): ProcessEvent {
  return { kind: "output", stream, bytes: Buffer.from(base64, "base64") };
}

/** The code a shell would give for this end: the process's own, or 128+n for signal n. Throws CliError when neither. */
export function shellExitCode(end: ProcessEnd): number {
  if (end.exitCode !== undefined) return end.exitCode;
  const words = end.status.replace(/^signal: /, "").replace(/ \(core dumped\)$/, "");
  const known = SIGNAL_WORDS.indexOf(words);
  const number = known > 0 ? known : Number(/^signal (\d+)$/.exec(words)?.[1]);
  if (Number.isInteger(number)) return 128 + number;
  throw new CliError(EXIT.failure, `the process ended in an unknown way: ${end.status || "no status"}`);
}

/** By number: how the agent words a signal. The words are the only trace of it on this wire; the rest are `signal N`. */
const SIGNAL_WORDS: readonly string[] = [
  "",
  "hangup",
  "interrupt",
  "quit",
  "illegal instruction",
  "trace/breakpoint trap",
  "aborted",
  "bus error",
  "floating point exception",
  "killed",
  "user defined signal 1",
  "segmentation fault",
  "user defined signal 2",
  "broken pipe",
  "alarm clock",
  "terminated",
  "stack fault",
  "child exited",
  "continued",
  "stopped (signal)",
  "stopped",
  "stopped (tty input)",
  "stopped (tty output)",
  "urgent I/O condition",
  "CPU time limit exceeded",
  "file size limit exceeded",
  "virtual timer expired",
  "profiling timer expired",
  "window changed",
  "I/O possible",
  "power failure",
  "bad system call",
];

/** A command that could not be started has the code a shell would give; every other failure is aenv's. */
export function describeStart(error: unknown, cmd: string): unknown {
  if (!(error instanceof RpcError)) return error;
  const code = STARTING_CODES[error.code];
  if (!error.answered || code === undefined) return error;
  return new CliError(code, `cannot run ${cmd}: ${error.message}`, { cause: error });
}

const STARTING_CODES: Partial<Record<RpcCode, number>> = {
  not_found: EXIT.commandNotFound,
  permission_denied: EXIT.notExecutable,
};
