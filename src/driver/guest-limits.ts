import type { MachineSpec } from "./driver.ts";

/** What every driver gives the programs inside. */

export const OPEN_FILES = 1_048_576;

/** Memory a guest task is taken to need; see docs/decisions/0002-pids-limit.md. */
const BYTES_PER_TASK = 1024 * 1024;
const MIN_TASKS = 256;

/** How many processes and threads each user but root may have. */
export function maxTasks({ resources }: Pick<MachineSpec, "resources">): number {
  return Math.min(resources.pidsMax, Math.max(MIN_TASKS, Math.floor(resources.memoryBytes / BYTES_PER_TASK)));
}

/** A tmpfs is memory that no kill gives back, so it may not reach the limit. */
export function shmBytes({ resources }: Pick<MachineSpec, "resources">): number {
  return Math.floor(resources.memoryBytes / 2);
}
