import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { connectStore, type Store } from "#store";
import { fromEnvironment } from "../machines/host.ts";

const START_TIMEOUT_MS = 60_000;

/** A blobd of a test's own. */
export class TestBlobd implements AsyncDisposable {
  readonly store: Store;
  readonly #process: ChildProcess;

  private constructor(store: Store, process: ChildProcess) {
    this.store = store;
    this.#process = process;
  }

  static async start(dir: string): Promise<TestBlobd> {
    const socket = join(dir, "blobd.sock");
    const program = join(fromEnvironment("AENV_TEST_BIN_DIR"), "blobd");
    const child = spawn(program, ["-data", join(dir, "blobs"), "-socket", socket], {
      stdio: ["ignore", "ignore", "inherit"],
    });
    const giveUpAtMs = performance.now() + START_TIMEOUT_MS;
    while (!existsSync(socket)) {
      if (child.exitCode !== null || performance.now() > giveUpAtMs) throw new Error("blobd did not start");
      await sleep(10);
    }
    return new TestBlobd(connectStore(socket), child);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.store.close();
    this.#process.kill("SIGTERM");
    if (this.#process.exitCode === null) await once(this.#process, "exit");
  }
}
