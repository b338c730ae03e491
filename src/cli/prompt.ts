import { CliError, EXIT } from "./errors.ts";
import { type CliIo, writeAll } from "./io.ts";

const MAX_LINE_BYTES = 64 * 1024;
const CTRL_C = 0x03;
const CTRL_D = 0x04;
const CTRL_U = 0x15;
const BACKSPACE = 0x08;
const DELETE = 0x7f;

/** Questions on standard error, answers from standard input. */
export class Prompter implements AsyncDisposable {
  readonly #io: CliIo;
  /** What came behind the last line that was read. */
  #rest: Buffer = Buffer.alloc(0);

  constructor(io: CliIo) {
    this.#io = io;
  }

  async ask(question: string, suggestion: string): Promise<string> {
    await writeAll(this.#io.stderr, `${question} [${suggestion}]: `);
    const answer = await this.readLine();
    return answer.trim() === "" ? suggestion : answer;
  }

  /** Shows nothing of what is typed. */
  async askHidden(question: string): Promise<string> {
    const { stdin, stderr } = this.#io;
    const restore = (): void => void stdin.setRawMode?.(false);
    const forget = this.#io.onExit(restore);
    // First, so that nothing shows of an answer that comes with the question.
    stdin.setRawMode?.(true);
    try {
      await writeAll(stderr, `${question} (not shown): `);
      return await this.#readTyped();
    } finally {
      restore();
      forget();
      await writeAll(stderr, "\n");
    }
  }

  /** One line without its end; what there is when input ends before. */
  async readLine(): Promise<string> {
    let line = this.#rest;
    for (;;) {
      const end = line.indexOf("\n");
      if (end >= 0) {
        this.#rest = line.subarray(end + 1);
        return line.toString("utf8", 0, end).replace(/\r$/, "");
      }
      const chunk = line.length > MAX_LINE_BYTES ? undefined : await this.#nextChunk();
      if (chunk === undefined) {
        this.#rest = Buffer.alloc(0);
        return line.toString("utf8");
      }
      line = Buffer.concat([line, chunk]);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#io.stdin.pause();
  }

  /** The keys of one line in raw mode, where the terminal edits nothing for us. */
  async #readTyped(): Promise<string> {
    const typed: number[] = [];
    for (;;) {
      const chunk = this.#rest.length > 0 ? this.#rest : await this.#nextChunk();
      this.#rest = Buffer.alloc(0);
      if (chunk === undefined) return Buffer.from(typed).toString("utf8");
      for (const [at, byte] of chunk.entries()) {
        if (byte === CTRL_C) throw new CliError(EXIT.interrupted, "interrupted, nothing was saved");
        if (byte === 0x0d || byte === 0x0a || byte === CTRL_D) {
          this.#rest = chunk.subarray(at + 1);
          return Buffer.from(typed).toString("utf8");
        }
        if (byte === BACKSPACE || byte === DELETE) typed.pop();
        else if (byte === CTRL_U) typed.length = 0;
        else if (typed.length < MAX_LINE_BYTES) typed.push(byte);
      }
    }
  }

  async #nextChunk(): Promise<Buffer | undefined> {
    const { stdin } = this.#io;
    const { promise, resolve, reject } = Promise.withResolvers<Buffer | undefined>();
    const onData = (chunk: Buffer | string): void => resolve(Buffer.from(chunk));
    const onEnd = (): void => resolve(undefined);
    if (stdin.readableEnded || stdin.destroyed) return undefined;
    stdin.once("data", onData).once("end", onEnd).once("close", onEnd).once("error", reject);
    stdin.resume();
    try {
      return await promise;
    } finally {
      stdin.pause();
      stdin.off("data", onData).off("end", onEnd).off("close", onEnd).off("error", reject);
    }
  }
}
