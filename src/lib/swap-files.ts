import { mkdirSync, readdirSync, readFileSync } from "node:fs";
import { open, rm, statfs } from "node:fs/promises";
import { join } from "node:path";
import { fault } from "./fault.ts";
import type { Logger } from "./log.ts";
import { Semaphore } from "./mutex.ts";
import type { CommandRunner } from "./run.ts";

export interface SwapFilesOptions {
  /** A folder of its own, on a file system that takes swap files (ext4, XFS). */
  readonly dir: string;
  readonly runner: CommandRunner;
  readonly logger: Logger;
  readonly fileBytes: number;
  readonly maxFiles: number;
}

/** Of the disk's free space, at most this share becomes one more file: what is written meanwhile must still fit. */
const MAX_SHARE_OF_FREE = 0.25;
/** A page that was on its way out when its owner ended is counted until somebody takes the file away, for good. */
const NEXT_TO_NOTHING_BYTES = 16 * 1024 * 1024;
const COMMAND_TIMEOUT_MS = 30_000;

/**
 * Swap space of the host that is made when it is needed, file by file, and taken away when next to nothing is in it. A file that is
 * in use outlives this process, as what lies in it does; the next server on the folder takes it up.
 */
export class SwapFiles {
  readonly #options: SwapFilesOptions;
  readonly #turns = new Semaphore(1);
  /** After a host refused a swap file it is not asked again by this server. */
  #refused = false;

  private constructor(options: SwapFilesOptions) {
    this.#options = options;
  }

  /** Takes up the files in use, and removes what else lies in the folder. */
  static async open(options: SwapFilesOptions): Promise<SwapFiles> {
    mkdirSync(options.dir, { recursive: true, mode: 0o700 });
    const files = new SwapFiles(options);
    await files.#removeOthers();
    return files;
  }

  /** Makes sure that so much fits into the host's swap. False: it does not, and this host takes no more swap files, or there
   *  are as many as there may be, or its disk is too full for another. */
  room(bytes: number): Promise<boolean> {
    return this.#turns.run(async () => {
      while (freeSwapBytes() < bytes) if (!(await this.#add())) return false;
      return true;
    });
  }

  /** Takes files away in which next to nothing is, all but `keep` of them. */
  trim({ keep = 0 } = {}): Promise<void> {
    return this.#turns.run(async () => {
      const empty = this.#ours().filter(({ usedBytes }) => usedBytes <= NEXT_TO_NOTHING_BYTES);
      for (const { path } of empty.slice(keep)) await this.#take(path);
    });
  }

  async #add(): Promise<boolean> {
    const { dir, fileBytes, maxFiles, logger } = this.#options;
    const names = new Set(this.#ours().map(({ path }) => path));
    if (this.#refused || names.size >= maxFiles) return false;
    const { bavail, bsize } = await statfs(dir);
    if (fileBytes > bavail * bsize * MAX_SHARE_OF_FREE) return false;
    let path = "";
    for (let number = 1; path === "" || names.has(path); number += 1) path = join(dir, String(number));
    try {
      await this.#make(path);
      logger.info("swap file made", { path });
      return true;
    } catch (error) {
      this.#refused = true;
      await rm(path, { force: true });
      logger.warn("this host takes no swap file in the data folder: idle sandboxes keep their memory", { path, error });
      return false;
    }
  }

  /** Its blocks are reserved, not written: the kernel writes them itself. */
  async #make(path: string): Promise<void> {
    const { fileBytes } = this.#options;
    await rm(path, { force: true });
    await (await open(path, "wx", 0o600)).close();
    await this.#run(["fallocate", "--length", String(fileBytes), path]);
    await fault("swap.reserved");
    await this.#run(["mkswap", path]);
    await this.#run(["swapon", path]);
    await fault("swap.on");
  }

  async #take(path: string): Promise<void> {
    await this.#run(["swapoff", path]);
    await fault("swap.off");
    await rm(path, { force: true });
  }

  async #run(argv: readonly string[]): Promise<void> {
    await this.#options.runner.run(argv, { timeoutMs: COMMAND_TIMEOUT_MS });
  }

  /** What a crash left half made. */
  async #removeOthers(): Promise<void> {
    const { dir } = this.#options;
    const used = new Set(this.#ours().map(({ path }) => path));
    for (const name of readdirSync(dir)) if (!used.has(join(dir, name))) await rm(join(dir, name), { force: true });
  }

  #ours(): SwapArea[] {
    return swapAreas(readFileSync("/proc/swaps", "utf8")).filter(({ path }) =>
      path.startsWith(`${this.#options.dir}/`),
    );
  }
}

export interface SwapArea {
  readonly path: string;
  readonly usedBytes: number;
}

/** From the text of /proc/swaps. */
export function swapAreas(text: string): SwapArea[] {
  return text
    .split("\n")
    .slice(1)
    .filter((line) => line !== "")
    .map((line) => {
      const [path = "", , , usedKib] = line.split(/\s+/);
      return { path: unescapeOctal(path), usedBytes: Number(usedKib) * 1024 };
    });
}

/** Blanks and the like are written as `\040`. */
function unescapeOctal(text: string): string {
  return text.replace(/\\([0-7]{3})/g, (_, digits: string) => String.fromCharCode(Number.parseInt(digits, 8)));
}

function freeSwapBytes(): number {
  return Number(/^SwapFree:\s+(\d+) kB$/m.exec(readFileSync("/proc/meminfo", "utf8"))?.[1] ?? 0) * 1024;
}
