import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { createInterface } from "node:readline";

/** A process that answers the SDK at once, so that what the SDK takes by itself can be told from what the product takes. */
export class Instant {
  readonly #url: string;
  readonly #child: ChildProcess;
  readonly #ended: Promise<unknown>;

  private constructor(url: string, child: ChildProcess, ended: Promise<unknown>) {
    this.#url = url;
    this.#child = child;
    this.#ended = ended;
  }

  static async start(): Promise<Instant> {
    const file = join(import.meta.dirname, "instant-server.ts");
    // In a session of its own: an interrupt from the terminal is for the bench, which then ends this in order.
    const child = spawn(process.execPath, [file], { stdio: ["pipe", "pipe", "inherit"], detached: true });
    const ended = once(child, "exit");
    const failed = ended.then(() => Promise.reject(new Error("the server that answers at once ended")));
    const [port] = await Promise.race([once(createInterface({ input: child.stdout }), "line"), failed]);
    failed.catch(() => {});
    return new Instant(`http://127.0.0.1:${port}`, child, ended);
  }

  /** Points the stock SDK at it. */
  get sdkOptions(): { apiUrl: string; sandboxUrl: string; apiKey: string } {
    return { apiUrl: this.#url, sandboxUrl: this.#url, apiKey: `e2b_${"0".repeat(40)}` };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#child.stdin?.end();
    await this.#ended;
  }
}
