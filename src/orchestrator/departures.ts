/** Slots on their way back: of sandboxes that have ended for everybody, but not on the host yet. */
export class Departures {
  readonly #leaving = new Set<Promise<void>>();

  /** `gone` never rejects. */
  add(gone: Promise<void>): void {
    const tracked = gone.finally(() => this.#leaving.delete(tracked));
    this.#leaving.add(tracked);
  }

  /** Returns when the next one is back. False: none is on its way. */
  async next(): Promise<boolean> {
    if (this.#leaving.size === 0) return false;
    await Promise.race(this.#leaving);
    return true;
  }
}
