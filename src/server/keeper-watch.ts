import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { Logger } from "#lib/log";
import { startDetached } from "#lib/spawn";
import { type Config, dataPaths } from "../config.ts";

const CHECK_EVERY_MS = 500;

/**
 * Starts the keeper again when it has died. The keeper starts everybody else, so somebody else has to start the keeper: the
 * edge and aenvd both look after it (its lock lets only one live), and only when all three die at once is the host's own
 * supervisor, or `npm run up`, needed. A keeper that was told to stop removes its pid file and is left alone.
 */
export class KeeperWatch {
  readonly #config: Config;
  readonly #logger: Logger;
  readonly #timer: NodeJS.Timeout;
  #wasGone = false;

  constructor(config: Config, logger: Logger) {
    this.#config = config;
    this.#logger = logger;
    this.#timer = setInterval(() => this.#check(), CHECK_EVERY_MS);
    this.#timer.unref();
  }

  close(): void {
    clearInterval(this.#timer);
  }

  #check(): void {
    const { keeperPid, keeperConfig, log } = dataPaths(this.#config.dataDir);
    const isGone = existsSync(keeperConfig) && hasDied(keeperPid);
    // Twice in a row: whoever replaces a keeper leaves a gap.
    if (isGone && this.#wasGone) {
      this.#logger.error("the keeper has died; it is started again", { pid: process.pid });
      startDetached([join(this.#config.binDir, "keeper"), "-config", keeperConfig], join(log, "keeper.log"));
    }
    this.#wasGone = isGone && !this.#wasGone;
  }
}

/** True when a pid file is there and names no keeper that lives. */
function hasDied(pidFile: string): boolean {
  let pid: string;
  try {
    pid = readFileSync(pidFile, "utf8").trim();
  } catch {
    return false;
  }
  try {
    return readFileSync(`/proc/${pid}/comm`, "utf8").trim() !== "keeper";
  } catch {
    return true;
  }
}
