import { existsSync } from "node:fs";
import { AenvError } from "#domain";
import type { CommandRunner } from "#lib/run";
import type { CheckpointOptions } from "../driver.ts";

/** The program gives up by itself, a little earlier. */
const TIMEOUT_MS = 600_000;

/** The program sentrysave: what `runsc checkpoint` does, but that starting runsc takes longer than much of what there is to write. */
export class SentrySave {
  readonly #path: string;
  readonly #runner: CommandRunner;

  /** Errors: unavailable, when there is no such program. */
  constructor(path: string, runner: CommandRunner) {
    if (!existsSync(path)) {
      throw new AenvError("unavailable", `sentrysave is missing: ${path}`, { hint: "build it again: npm run up" });
    }
    this.#path = path;
    this.#runner = runner;
  }

  /** Writes the state of the sandbox that listens on `socket` into an empty folder. The sandbox goes on (or stays paused) whether this
   *  succeeds or fails. */
  async save(socket: string, dir: string, { capture, durable }: Omit<CheckpointOptions, "keepRunning">): Promise<void> {
    const what = [...(capture === "disk" ? ["-disk"] : []), ...(durable ? ["-write-out"] : [])];
    await this.#runner.run([this.#path, `-socket=${socket}`, `-dir=${dir}`, ...what], { timeoutMs: TIMEOUT_MS });
  }

  /** True of the command line of a process that writes the state of the sandbox that listens on `socket`. */
  static isOf(args: readonly string[], socket: string): boolean {
    return args[1] === `-socket=${socket}`;
  }
}
