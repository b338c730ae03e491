import { totalmem } from "node:os";
import { MIB } from "#domain";
import type { Logger } from "#lib/log";
import type { CommandRunner } from "#lib/run";
import { SwapFiles } from "#lib/swap-files";
import type { Config } from "../config.ts";

/** Kernels take some twenty swap files in all. */
const MAX_FILES = 16;
const MIN_FILE_MIB = 1024;
const DEFAULT_TIMES_MEMORY = 2;
const TRIM_EVERY_MS = 60_000;

export interface Swap {
  readonly files: SwapFiles;
  /** Takes away what is empty. What holds memory of sandboxes stays, and is taken up by the next server. */
  close(): Promise<void>;
}

/** The swap files of a server; undefined: it is to have none. */
export async function openSwap(
  { swapMaxMib }: Config,
  dir: string,
  runner: CommandRunner,
  logger: Logger,
): Promise<Swap | undefined> {
  const maxMib = swapMaxMib ?? Math.floor((DEFAULT_TIMES_MEMORY * totalmem()) / MIB);
  if (maxMib === 0) return undefined;
  const fileMib = Math.min(maxMib, Math.max(MIN_FILE_MIB, Math.ceil(maxMib / MAX_FILES)));
  const maxFiles = Math.floor(maxMib / fileMib);
  const files = await SwapFiles.open({ dir, runner, logger, fileBytes: fileMib * MIB, maxFiles });
  const trim = (keep: number): Promise<void> =>
    files.trim({ keep }).catch((error: unknown) => logger.warn("an empty swap file stays", { path: dir, error }));
  let trimming = Promise.resolve();
  const timer = setInterval(() => {
    trimming = trimming.then(() => trim(1));
  }, TRIM_EVERY_MS);
  return {
    files,
    async close() {
      clearInterval(timer);
      await trimming;
      await trim(0);
    },
  };
}
