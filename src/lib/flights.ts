/** Work that is done once for all who ask for it while it goes on, by its key. */
export class Flights<T = void> {
  readonly #under = new Map<string, Promise<T>>();

  run(key: string, work: () => Promise<T>): Promise<T> {
    const known = this.#under.get(key);
    if (known !== undefined) return known;
    const done = work().finally(() => this.#under.delete(key));
    this.#under.set(key, done);
    return done;
  }
}
