import type { Readable, Writable } from "node:stream";
import { runOnTerminal } from "#lib/spawn";
import { BrokenPipeError } from "./errors.ts";

export type SignalName = "SIGINT" | "SIGTERM" | "SIGHUP" | "SIGWINCH" | "SIGCONT";

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

/** Settles when the stream has taken the bytes, so that whoever awaits it goes as fast as the reader.
 *  Throws BrokenPipeError when the reader is gone. */
export async function writeAll(stream: Writable, data: string | Uint8Array): Promise<void> {
  await new Promise<void>((resolve, reject) => {
    stream.write(data, (error) => (error ? reject(asBrokenPipe(error)) : resolve()));
  });
}

/** Of pipes and sockets; EIO of a terminal that was closed. */
const GONE: ReadonlySet<string> = new Set(["EPIPE", "ERR_STREAM_DESTROYED", "ECONNRESET", "EIO"]);

function asBrokenPipe(error: Error & { code?: string }): Error {
  return GONE.has(error.code ?? "") ? new BrokenPipeError() : error;
}

/** Waits until what was written has left the process. A reader that has gone is no error here. */
export async function flush(stream: Writable): Promise<void> {
  await writeAll(stream, "").catch(() => {});
}

/** Colour only for a terminal that wants it (https://no-color.org). */
export function wantsColor(io: CliIo): boolean {
  return io.stdout.isTTY === true && !io.env.NO_COLOR && io.env.TERM !== "dumb";
}
