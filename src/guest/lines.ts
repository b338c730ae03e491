/** A line longer than this is handed on in parts. */
export const LINE_MAX_CHARS = 4_000;

/** Cuts a stream of bytes into lines of text. */
export class LineSplitter {
  readonly #onLine: (line: string) => void;
  readonly #decoder = new TextDecoder();
  #rest = "";

  constructor(onLine: (line: string) => void) {
    this.#onLine = onLine;
  }

  add(bytes: Uint8Array): void {
    const lines = (this.#rest + this.#decoder.decode(bytes, { stream: true })).split("\n");
    this.#rest = lines.pop() ?? "";
    for (const line of lines) this.#hand(line);
    this.#rest = this.#cut(this.#rest);
  }

  /** Hands on what came without an end of line. */
  flush(): void {
    if (this.#rest !== "") this.#hand(this.#rest);
    this.#rest = "";
  }

  #hand(line: string): void {
    this.#onLine(this.#cut(line.replace(/\r$/, "")));
  }

  /** Hands on all of a long line but its last part, which is returned. */
  #cut(line: string): string {
    let from = 0;
    for (; line.length - from > LINE_MAX_CHARS; from += LINE_MAX_CHARS) {
      this.#onLine(line.slice(from, from + LINE_MAX_CHARS));
    }
    return line.slice(from);
  }
}
