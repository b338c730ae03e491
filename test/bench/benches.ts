import type { TestConfig } from "../e2e/start.ts";
import { Bench } from "./context.ts";

/** A server for each of the settings that figures ask for, started when the first one does. */
export class Benches {
  readonly #opened = new Map<string, Promise<Bench>>();
  readonly #say: (line: string) => void;

  constructor(say: (line: string) => void) {
    this.#say = say;
  }

  of(settings: Partial<TestConfig>): Promise<Bench> {
    const key = JSON.stringify(settings);
    const present = this.#opened.get(key);
    if (present !== undefined) return present;
    this.#say(`starting a server${key === "{}" ? "" : ` with ${key}`}…`);
    const opening = Bench.open(settings);
    this.#opened.set(key, opening);
    return opening;
  }

  /** Ends all of them, also in the middle of a figure. */
  async close(): Promise<void> {
    const opened = await Promise.allSettled(this.#opened.values());
    await Promise.all(opened.map(async (one) => (one.status === "fulfilled" ? await one.value.close() : undefined)));
  }
}
