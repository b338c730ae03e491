/** Things that are in use for a moment, by key, each as many times as it was taken hold of. */
export class Holds {
  readonly #counts = new Map<string, number>();

  count(key: string): number {
    return this.#counts.get(key) ?? 0;
  }

  /** Returns how to let go again, once. */
  take(...keys: readonly string[]): () => void {
    for (const key of keys) this.#counts.set(key, this.count(key) + 1);
    return () => {
      for (const key of keys) {
        const left = this.count(key) - 1;
        if (left > 0) this.#counts.set(key, left);
        else this.#counts.delete(key);
      }
    };
  }
}
