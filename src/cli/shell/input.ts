const HIGH_WATER_BYTES = 256 * 1024;
const LOW_WATER_BYTES = 32 * 1024;

/**
 * Sends what is typed in order, one call at a time; what is typed meanwhile goes with the next one. A call that failed is
 * not repeated: it may have arrived, and a line typed twice is worse than a line lost.
 */
export class InputSender {
  readonly #send: (bytes: Buffer) => Promise<void>;
  readonly #pressure: (high: boolean) => void;
  #waiting: Buffer[] = [];
  #waitingBytes = 0;
  #high = false;
  #draining: Promise<void> | undefined;

  /** `pressure(true)`: more is typed than is taken; stop reading the terminal until `pressure(false)`. */
  constructor(send: (bytes: Buffer) => Promise<void>, pressure: (high: boolean) => void) {
    this.#send = send;
    this.#pressure = pressure;
  }

  push(bytes: Buffer): void {
    if (bytes.length === 0) return;
    this.#waiting.push(bytes);
    this.#waitingBytes += bytes.length;
    this.#report();
    this.#draining ??= this.#drain();
  }

  /** Settles when nothing is under way. Never throws. */
  async idle(): Promise<void> {
    await this.#draining;
  }

  async #drain(): Promise<void> {
    while (this.#waiting.length > 0) {
      const bytes = Buffer.concat(this.#waiting);
      this.#waiting = [];
      this.#waitingBytes = 0;
      await this.#send(bytes).catch(() => {});
      this.#report();
    }
    this.#draining = undefined;
  }

  #report(): void {
    const high = this.#waitingBytes > (this.#high ? LOW_WATER_BYTES : HIGH_WATER_BYTES);
    if (high !== this.#high) this.#pressure(high);
    this.#high = high;
  }
}
