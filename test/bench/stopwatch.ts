import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { systemPython } from "../../scripts/setup/venv.ts";

/** What the measuring program can do; see stopwatch.py. */
export type Step =
  | { readonly run: readonly string[]; readonly log: string }
  | { readonly answer: readonly [host: string, port: number, path: string] }
  | { readonly fsync: string }
  | { readonly parallel: readonly (readonly Step[])[]; readonly width: number };

/** A small program of its own that times bare commands: what it starts, it starts far quicker than this process could. */
export class Stopwatch {
  readonly #child: ChildProcess;
  readonly #answers: AsyncIterator<string>;

  constructor() {
    const file = join(import.meta.dirname, "stopwatch.py");
    // In a session of its own: an interrupt from the terminal is for the bench, which then ends this in order.
    this.#child = spawn(systemPython(), [file], { stdio: ["pipe", "pipe", "inherit"], detached: true });
    if (this.#child.stdout === null) throw new Error("the stopwatch has no output");
    this.#answers = createInterface({ input: this.#child.stdout })[Symbol.asyncIterator]();
  }

  /** Carries out the steps one after another; returns how many ms each took. Throws when one failed. One call at a time. */
  async time(steps: readonly Step[]): Promise<number[]> {
    this.#child.stdin?.write(`${JSON.stringify(steps)}\n`);
    const { value, done } = await this.#answers.next();
    if (done) throw new Error("the stopwatch ended");
    const answer = JSON.parse(value) as { readonly ms: number[] } | { readonly error: string };
    if ("error" in answer) throw new Error(answer.error);
    return answer.ms;
  }

  async close(): Promise<void> {
    const ended = once(this.#child, "exit");
    this.#child.stdin?.end();
    await ended;
  }
}
