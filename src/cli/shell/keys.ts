const NEWLINE = 0x0d;
const TILDE = 0x7e;
const DOT = 0x2e;
const CTRL_P = 0x10;
const CTRL_Q = 0x11;

/**
 * Finds in what is typed how a person leaves: `~.` at the start of a line, as with ssh (`~~` there types one `~`), and, where
 * `ctrlPQ` says so, Ctrl-P Ctrl-Q, as with docker.
 */
export class DetachKeys {
  readonly #ctrlPQ: boolean;
  #atLineStart = true;
  #tilde = false;
  #ctrlP = false;

  constructor(options: { readonly ctrlPQ: boolean }) {
    this.#ctrlPQ = options.ctrlPQ;
  }

  /** A Ctrl-P is held back until the next key tells what it was, or `release` is called. */
  get holdsCtrlP(): boolean {
    return this.#ctrlP;
  }

  /** What goes to the program of these bytes, and whether the person asked to leave (the rest is dropped then). */
  take(bytes: Buffer): { readonly pass: Buffer; readonly detach: boolean } {
    const pass: number[] = [];
    for (const byte of bytes) {
      if (this.#ctrlP) {
        this.#ctrlP = false;
        if (byte === CTRL_Q) return { pass: Buffer.from(pass), detach: true };
        pass.push(CTRL_P);
      }
      if (this.#tilde) {
        this.#tilde = false;
        if (byte === DOT) return { pass: Buffer.from(pass), detach: true };
        this.#atLineStart = false;
        pass.push(TILDE);
        if (byte === TILDE) continue;
      } else if (byte === TILDE && this.#atLineStart) {
        this.#tilde = true;
        continue;
      }
      this.#atLineStart = byte === NEWLINE;
      if (byte === CTRL_P && this.#ctrlPQ) this.#ctrlP = true;
      else pass.push(byte);
    }
    return { pass: Buffer.from(pass), detach: false };
  }

  /** The Ctrl-P that was held back: it was meant for the program. */
  release(): Buffer {
    const held = this.#ctrlP ? Buffer.of(CTRL_P) : Buffer.alloc(0);
    this.#ctrlP = false;
    return held;
  }
}
