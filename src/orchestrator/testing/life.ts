/** A server's hold on the world. When it has ended, nothing that the server still does reaches the world, as after a kill. */
export class Life {
  #isOver = false;
  readonly #underWay = new Set<Promise<unknown>>();

  end(): void {
    this.#isOver = true;
  }

  /** Returns when others have done what they were asked for before its end, and go on with. */
  async settled(): Promise<void> {
    await Promise.allSettled(this.#underWay);
  }

  /** The same object while the server lives; afterwards its methods never return. So for the machines that they return. `goesOn`: those
   *  that `settled` waits for. */
  hold<T extends object>(part: T, goesOn: readonly (keyof T)[] = []): T {
    return new Proxy(part, {
      get: (target, name) => {
        const value: unknown = Reflect.get(target, name, target);
        if (typeof value !== "function") return value;
        return (...args: unknown[]) => {
          if (this.#isOver) return never();
          const result: unknown = value.apply(target, args);
          if (!(result instanceof Promise)) return result;
          if (goesOn.some((each) => each === name)) this.#goOn(result);
          return result.then((settled: unknown) => this.#passOn(settled));
        };
      },
    });
  }

  #goOn(work: Promise<unknown>): void {
    this.#underWay.add(work);
    const over = (): boolean => this.#underWay.delete(work);
    work.then(over, over);
  }

  #passOn(settled: unknown): unknown {
    if (this.#isOver) return never();
    return isMachine(settled) ? this.hold(settled) : settled;
  }
}

function never(): Promise<never> {
  return new Promise(() => {});
}

function isMachine(value: unknown): value is object {
  return typeof value === "object" && value !== null && "checkpoint" in value;
}
