/** One holder at a time for each key, first come first served. Keys nobody waits for take no memory. */
export class KeyedMutex {
  readonly #tails = new Map<string, Promise<void>>();

  async run<T>(key: string, work: () => Promise<T>): Promise<T> {
    const before = this.#tails.get(key) ?? Promise.resolve();
    const done = Promise.withResolvers<void>();
    const tail = before.then(() => done.promise);
    this.#tails.set(key, tail);
    await before;
    try {
      return await work();
    } finally {
      done.resolve();
      if (this.#tails.get(key) === tail) this.#tails.delete(key);
    }
  }
}

/** At most `width` at a time, first come first served; who is patient waits until nobody else does. */
export class Semaphore {
  readonly #width: number;
  #free: number;
  readonly #waiting: (() => void)[] = [];
  readonly #patient: (() => void)[] = [];

  constructor(width: number) {
    this.#width = width;
    this.#free = width;
  }

  /** Nobody runs. */
  get isIdle(): boolean {
    return this.#free === this.#width;
  }

  /** Whoever runs now does not wait. */
  get isFree(): boolean {
    return this.#free > 0;
  }

  async run<T>(work: () => Promise<T>, { isPatient = false } = {}): Promise<T> {
    const line = isPatient ? this.#patient : this.#waiting;
    if (this.#free > 0) this.#free -= 1;
    else await new Promise<void>((resolve) => line.push(resolve));
    try {
      return await work();
    } finally {
      const next = this.#waiting.shift() ?? this.#patient.shift();
      if (next === undefined) this.#free += 1;
      else next();
    }
  }
}
