import { existsSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { AenvError } from "#domain";
import { filesOpenForWriting } from "#lib/proc";
import type { CommandRunner } from "#lib/run";
import type { CheckpointOptions } from "../driver.ts";

/** The program gives up by itself, a little earlier. */
const TIMEOUT_MS = 600_000;
const LOOK_MS = 10;
/** The file with the memory, or the disk's contents, which a sandbox holds to the end. */
const PAGES = /\/pages\.img(?: \(deleted\))?$/;

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
}

/**
 * Settles when the sandbox with this process writes no state of itself, after which it runs if it ran before. It does not stop when whoever
 * asked for that is killed.
 */
export async function stateWritten(pid: number): Promise<void> {
  const isWriting = (): boolean => filesOpenForWriting(pid).some((path) => PAGES.test(path));
  for (const giveUpAtMs = performance.now() + TIMEOUT_MS; performance.now() < giveUpAtMs && isWriting(); ) {
    await sleep(LOOK_MS);
  }
}
