import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { AenvError } from "#domain";
import type { GuestKernel } from "../choose.ts";

/**
 * A checkpoint on disk. Files beside the description:
 *   state      devices and processors, Firecracker's own format
 *   upper      the writable layer, an ext4 file system
 *   tools      the drive with the agent, the very file the guest has mounted
 *   memory-*   the guest's memory, in layers (see memory-layers.ts)
 */
export interface CheckpointDescription {
  readonly formatVersion: typeof FORMAT;
  /** A guest made for the one does not run on the other. */
  readonly kind: GuestKernel;
  /** Vendor, family and model. */
  readonly processor: string;
  readonly memoryBytes: number;
  /** Names of the memory's files, the complete one first. */
  readonly layers: readonly string[];
}

const FORMAT = 1;
const DESCRIPTION = "checkpoint.json";

export const STATE = "state";
export const UPPER = "upper";
export const TOOLS = "tools";

export async function writeDescription(
  dir: string,
  description: Omit<CheckpointDescription, "formatVersion">,
): Promise<void> {
  await writeFile(join(dir, DESCRIPTION), JSON.stringify({ formatVersion: FORMAT, ...description }));
}

/** Throws ENOENT where there is no checkpoint. Errors: conflict, when this host cannot restore it. */
export async function readDescription(
  dir: string,
  { kind, processor }: Pick<CheckpointDescription, "kind" | "processor">,
): Promise<CheckpointDescription> {
  const description = JSON.parse(await readFile(join(dir, DESCRIPTION), "utf8")) as CheckpointDescription;
  if (description.formatVersion !== FORMAT) {
    throw new AenvError(
      "conflict",
      `checkpoint ${dir} has format ${description.formatVersion}, this server reads ${FORMAT}`,
    );
  }
  if (description.kind !== kind) {
    throw new AenvError("conflict", `checkpoint ${dir} was made on ${description.kind}, this host has ${kind}`, {
      hint: "restore it on a host of the same kind, or build the template again",
    });
  }
  if (description.processor !== processor) {
    throw new AenvError(
      "conflict",
      `checkpoint ${dir} was made on a processor "${description.processor}", this host has "${processor}"`,
      { hint: "restore it on a host with the same kind of processor, or build the template again" },
    );
  }
  return description;
}
