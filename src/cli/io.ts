import type { Readable, Writable } from "node:stream";
import { runOnTerminal } from "#lib/spawn";
import { BrokenPipeError, CliError, EXIT } from "./errors.ts";

/** The signals that ask a command to end, and the exit code of one that they ended. */
export const ENDING_CODES = { SIGINT: 130, SIGTERM: 143, SIGHUP: 129, SIGQUIT: 131 } as const;
export type EndingSignal = keyof typeof ENDING_CODES;
const ENDING_SIGNALS = Object.keys(ENDING_CODES) as EndingSignal[];

/** How long whoever was asked to end waits for a reader that takes nothing. */
export const UNREAD_MS = 1000;

export type SignalName = EndingSignal | "SIGWINCH" | "SIGCONT";

export interface InputStream extends Readable {
  readonly isTTY?: boolean;
  setRawMode?(on: boolean): unknown;
}

export interface OutputStream extends Writable {
  readonly isTTY?: boolean;
  readonly columns?: number;
  readonly rows?: number;
}

/** Everything the CLI touches of the process it runs in; tests hand in their own. */
export interface CliIo {
  readonly stdin: InputStream;
  readonly stdout: OutputStream;
  readonly stderr: OutputStream;
  readonly env: Readonly<Record<string, string | undefined>>;
  /** Lets every byte pass between standard input's terminal and us, both ways and untouched; or puts it back as it was.
   *  Throws when the terminal is gone. */
  setRaw(on: boolean): void;
  /** Calls `listener` on each signal, instead of what the signal does otherwise, until the returned function is called. */
  onSignal(name: SignalName, listener: () => void): () => void;
  /** Calls `listener`, which must be synchronous, when the process ends in whatever way it can still notice. */
  onExit(listener: () => void): () => void;
}

/** The real process. */
export function processIo(): CliIo {
  // A closed pipe is reported to the write that met it; without a listener the same event would end the process.
  process.stdout.on("error", () => {});
  process.stderr.on("error", () => {});
  let stdin: InputStream | undefined;
  return {
    // Opened on first use: a command that reads nothing leaves the terminal's and the pipe's input alone.
    get stdin() {
      // Whoever reads finds a failure there; without a listener one that comes between two reads would end the process.
      stdin ??= process.stdin.on("error", () => {});
      return stdin;
    },
    stdout: process.stdout,
    stderr: process.stderr,
    env: process.env,
    setRaw(on) {
      process.stdin.setRawMode(on);
      // Node's raw mode goes on turning line feeds into new lines, which garbles programs that draw.
      if (on) runOnTerminal(["stty", "-opost"]);
    },
    onSignal(name, listener) {
      process.on(name, listener);
      return () => process.off(name, listener);
    },
    onExit(listener) {
      process.on("exit", listener);
      return () => process.off("exit", listener);
    },
  };
}

/** Calls `listener` on each signal that asks us to end, instead of ending, until the returned function is called. */
export function onEnding(io: Pick<CliIo, "onSignal">, listener: (name: EndingSignal) => void): () => void {
  const forget = ENDING_SIGNALS.map((name) => io.onSignal(name, () => listener(name)));
  return () => {
    for (const each of forget) each();
  };
}

/** Settles when the stream has taken the bytes, so that whoever awaits it goes as fast as the reader. Throws BrokenPipeError when the
 *  reader is gone, CliError for what else keeps the bytes, and the signal's reason when it ends the wait for a reader. */
export async function writeAll(stream: Writable, data: string | Uint8Array, signal?: AbortSignal): Promise<void> {
  signal?.throwIfAborted();
  await new Promise<void>((resolve, reject) => {
    const abort = (): void => reject(signal?.reason);
    signal?.addEventListener("abort", abort, { once: true });
    stream.write(data, (error) => {
      signal?.removeEventListener("abort", abort);
      if (error) reject(cannotWrite("the output", error));
      else resolve();
    });
  });
}

/** Of pipes and sockets; EIO of a terminal that was closed. */
const GONE: ReadonlySet<string> = new Set(["EPIPE", "ERR_STREAM_DESTROYED", "ECONNRESET", "EIO"]);

/** What a failed write to a pipe, a terminal, a device or a redirected file is to a person. */
export function cannotWrite(what: string, error: Error & { code?: string }): Error {
  if (GONE.has(error.code ?? "")) return new BrokenPipeError();
  const why = error.code === "ENOSPC" ? "no space left" : error.message;
  return new CliError(EXIT.failure, `cannot write ${what}: ${why}`, { cause: error });
}

/** Waits until what was written has left the process, or `signal` gives up on its reader. One that has gone is no error here. */
export async function flush(stream: Writable, signal: AbortSignal): Promise<void> {
  await writeAll(stream, "", signal).catch(() => {});
}

/** Colour only for a terminal that wants it (https://no-color.org). */
export function wantsColor(io: CliIo): boolean {
  return io.stdout.isTTY === true && !io.env.NO_COLOR && io.env.TERM !== "dumb";
}
