const NEWLINE = 0x0d;
const TILDE = 0x7e;
const DOT = 0x2e;

/** Finds `~.` at the start of a line in what is typed, as ssh does; `~~` there types one `~`. */
export class DetachKeys {
  #atLineStart = true;
  #tilde = false;

  /** What goes to the shell of these bytes, and whether the person asked to leave (the rest is dropped then). */
  take(bytes: Buffer): { readonly pass: Buffer; readonly detach: boolean } {
    const pass: number[] = [];
    for (const byte of bytes) {
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
      pass.push(byte);
    }
    return { pass: Buffer.from(pass), detach: false };
  }
}
