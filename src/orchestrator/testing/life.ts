/** A server's hold on the world. When it has ended, nothing that the server still does reaches the world, as after a kill. */
export class Life {
  #isOver = false;

  end(): void {
    this.#isOver = true;
  }

  /** The same object while the server lives; afterwards its methods never return. So for the machines that they return. */
  hold<T extends object>(part: T): T {
    return new Proxy(part, {
      get: (target, name) => {
        const value: unknown = Reflect.get(target, name, target);
        if (typeof value !== "function") return value;
        return (...args: unknown[]) => {
          if (this.#isOver) return never();
          const result: unknown = value.apply(target, args);
          return result instanceof Promise ? result.then((settled: unknown) => this.#passOn(settled)) : result;
        };
      },
    });
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
