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

/** As Promise.all, but settles only when all of them have: nothing goes on behind the back of who handles the first error. */
export async function together<T extends readonly unknown[]>(
  work: readonly [...{ [K in keyof T]: Promise<T[K]> }],
): Promise<T> {
  await Promise.allSettled(work);
  return (await Promise.all(work)) as unknown as T;
}
