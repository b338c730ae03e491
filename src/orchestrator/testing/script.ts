import { AenvError } from "#domain";

/** What a test can make fail, once. */
export type Step =
  | "journal"
  | "slot"
  | "mount"
  | "restore"
  | "boot"
  | "health"
  | "init"
  | "freeze"
  | "checkpoint"
  | "sync"
  | "release";

/** Failures waiting to happen: the next call of a step gets its oldest. */
export class Script {
  readonly #failures = new Map<Step, (Error | undefined)[]>();

  /** `after`: how many calls still succeed. */
  fail(step: Step, { after = 0, times = 1 } = {}): void {
    const queue = this.#failures.get(step) ?? [];
    for (let at = 0; at < after; at += 1) queue.push(undefined);
    for (let at = 0; at < times; at += 1) queue.push(new AenvError("exhausted", `${step} fails as the test wants`));
    this.#failures.set(step, queue);
  }

  mayFail(step: Step): void {
    const error = this.#failures.get(step)?.shift();
    if (error !== undefined) throw error;
  }
}
