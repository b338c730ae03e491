import { readFileSync } from "node:fs";
import { rm } from "node:fs/promises";
import { localRunner } from "#lib/spawn";
import { type SwapArea, swapAreas } from "#lib/swap-files";

/** The swap files in a folder that the kernel uses. */
export function swapFilesIn(dir: string): SwapArea[] {
  return swapAreas(readFileSync("/proc/swaps", "utf8")).filter(({ path }) => path.startsWith(`${dir}/`));
}

/** Takes the swap files of a folder away, whoever made them: their content goes back to memory. */
export async function removeSwapFiles(dir: string): Promise<void> {
  for (const { path } of swapFilesIn(dir)) await localRunner().run(["swapoff", path]);
  await rm(dir, { recursive: true, force: true });
}
