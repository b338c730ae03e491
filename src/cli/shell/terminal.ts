import { type TerminalSize, terminalSize } from "../envd.ts";
import { BrokenPipeError } from "../errors.ts";
import type { CliIo } from "../io.ts";
import { writeAll } from "../io.ts";

/** Undoes what a program that was cut off may have left switched on: alternate screen, mouse, bracketed paste, colours,
 *  hidden cursor. Does nothing visible to a terminal in its normal state. */
const SOFT_RESET = "\x1b[?1049l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[?25h\x1b[0m";

/**
 * The person's terminal in raw mode. However the process ends (return, exception, a signal it can notice), the terminal is
 * put back first.
 */
export class RawTerminal implements Disposable {
  readonly #io: CliIo;
  readonly #onEnd: () => void;
  readonly #undo: (() => void)[] = [];

  /** `on.end`: somebody closed the terminal. Precondition: standard input and output are terminals. */
  constructor(io: CliIo, on: { input(bytes: Buffer): void; resize(): void; end(): void }) {
    this.#io = io;
    this.#onEnd = on.end;
    const { stdin } = io;
    const onData = (chunk: Buffer | string): void => on.input(Buffer.from(chunk));
    this.#undo.push(io.onExit(() => this.#restore()));
    // Somebody stopped and continued us; their shell has set the terminal to its own taste meanwhile.
    this.#undo.push(
      io.onSignal("SIGCONT", () => {
        io.setRaw(false);
        io.setRaw(true);
        on.resize();
      }),
    );
    this.#undo.push(io.onSignal("SIGWINCH", () => on.resize()));
    io.setRaw(true);
    stdin.on("data", onData).on("end", on.end).on("error", on.end);
    this.#undo.push(() => void stdin.off("data", onData).off("end", on.end).off("error", on.end));
    stdin.resume();
  }

  get size(): TerminalSize {
    return terminalSize(this.#io.stdout);
  }

  pauseInput(): void {
    this.#io.stdin.pause();
  }

  resumeInput(): void {
    this.#io.stdin.resume();
  }

  async write(bytes: Buffer): Promise<void> {
    try {
      await writeAll(this.#io.stdout, bytes);
    } catch (error) {
      if (!(error instanceof BrokenPipeError)) throw error;
      this.#onEnd();
    }
  }

  /** A remark of ours on a line of its own. */
  async note(text: string): Promise<void> {
    await writeAll(this.#io.stderr, `\r\n[aenv: ${text}]\r\n`).catch(() => {});
  }

  async softReset(): Promise<void> {
    await writeAll(this.#io.stdout, SOFT_RESET).catch(() => {});
  }

  [Symbol.dispose](): void {
    this.#restore();
    for (const undo of this.#undo.splice(0)) undo();
    this.#io.stdin.pause();
  }

  #restore(): void {
    try {
      this.#io.setRaw(false);
    } catch {
      // The terminal itself is gone (EIO): nothing to put back.
    }
  }
}
