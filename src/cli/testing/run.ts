import { EventEmitter } from "node:events";
import { PassThrough, type Writable } from "node:stream";
import type { CliIo, OutputStream, SignalName } from "../io.ts";
import { main } from "../main.ts";

export interface Result {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
  readonly stdoutBytes: Buffer;
}

/** A terminal or a set of pipes in the test's hands. */
export class TestIo implements CliIo {
  readonly stdin: PassThrough & { isTTY?: boolean; setRawMode?(on: boolean): void };
  readonly stdout: OutputStream;
  readonly stderr: OutputStream;
  readonly env: Record<string, string | undefined>;
  /** What raw mode was set to, in order. */
  readonly rawModes: boolean[] = [];
  readonly #process = new EventEmitter();
  readonly #written: { stdout: Buffer[]; stderr: Buffer[] } = { stdout: [], stderr: [] };
  readonly #news = new EventEmitter();

  /** `stdout`: in place of a reader that takes everything. */
  constructor(
    options: { readonly env?: Record<string, string>; readonly terminal?: boolean; readonly stdout?: Writable } = {},
  ) {
    this.env = { XDG_CONFIG_HOME: "/nonexistent", ...options.env };
    this.stdin = new PassThrough();
    this.stdout = options.stdout ?? this.#sink("stdout");
    this.stderr = this.#sink("stderr");
    if (options.terminal) {
      const size = { isTTY: true, columns: 100, rows: 30 };
      Object.assign(this.stdin, { isTTY: true, setRawMode: (on: boolean) => void this.rawModes.push(on) });
      Object.assign(this.stdout, size);
      Object.assign(this.stderr, size);
    }
  }

  setRaw(on: boolean): void {
    this.stdin.setRawMode?.(on);
  }

  onSignal(name: SignalName, listener: () => void): () => void {
    this.#process.on(name, listener);
    return () => this.#process.off(name, listener);
  }

  onExit(listener: () => void): () => void {
    this.#process.on("exit", listener);
    return () => this.#process.off("exit", listener);
  }

  signal(name: SignalName): void {
    this.#process.emit(name);
  }

  listeners(name: SignalName): number {
    return this.#process.listenerCount(name);
  }

  text(stream: "stdout" | "stderr"): string {
    return this.bytes(stream).toString("utf8");
  }

  bytes(stream: "stdout" | "stderr"): Buffer {
    return Buffer.concat(this.#written[stream]);
  }

  /** Settles when `stream` has shown `text`. */
  async shows(stream: "stdout" | "stderr", text: string): Promise<void> {
    while (!this.text(stream).includes(text)) await new Promise((resolve) => this.#news.once("written", resolve));
  }

  #sink(name: "stdout" | "stderr"): Writable {
    const stream = new PassThrough();
    stream.on("data", (chunk: Buffer) => {
      this.#written[name].push(chunk);
      this.#news.emit("written");
    });
    return stream;
  }
}

/** Runs one command line in this process. Standard input is empty unless `io` says otherwise. */
export async function aenv(argv: readonly string[], io: TestIo): Promise<Result> {
  const code = await main(argv, io);
  return { code, stdout: io.text("stdout"), stderr: io.text("stderr"), stdoutBytes: io.bytes("stdout") };
}
