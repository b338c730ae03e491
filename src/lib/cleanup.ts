/**
 * Undo stack: each step that leaves something behind adds its undo; success keeps it all.
 *
 *   await using undo = new Cleanup();
 *   const slot = await slots.acquire(policy);
 *   undo.add(() => slots.release(slot));
 *   …
 *   undo.keep();
 */
export class Cleanup implements AsyncDisposable {
  #steps: (() => Promise<void> | void)[] = [];

  add(step: () => Promise<void> | void): void {
    this.#steps.push(step);
  }

  /** Everything worked: nothing will be undone. */
  keep(): void {
    this.#steps = [];
  }

  /** Runs what was added, last first. One failing does not stop the others; failures are joined. */
  async [Symbol.asyncDispose](): Promise<void> {
    const errors: unknown[] = [];
    for (let step = this.#steps.pop(); step !== undefined; step = this.#steps.pop()) {
      try {
        await step();
      } catch (error) {
        errors.push(error);
      }
    }
    if (errors.length === 1) throw errors[0];
    if (errors.length > 1) throw new AggregateError(errors, "several undo steps failed");
  }
}
