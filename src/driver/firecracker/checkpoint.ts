import { chmod, chown, link, lstat, readFile, rm, writeFile } from "node:fs/promises";
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

/** What a file that Firecracker has written has to be. */
export interface Expected {
  readonly uid: number;
  /** Absent: any size. */
  readonly sizeBytes?: number;
}

/**
 * Takes a file that a jailed process has written out of its reach: root's, and never written again. Throws when it is none of
 * its own: a process that is no longer ours might leave the name of another file, a link, or a folder it has a hand in.
 */
export async function takeOver(source: string, target: string, expected: Expected): Promise<void> {
  // A second name, for whatever the first stands for: that follows no link and takes no folder. Behind ours nobody else can put
  // another file.
  await link(source, target);
  try {
    const found = await lstat(target);
    const fits = expected.sizeBytes === undefined || found.size === expected.sizeBytes;
    if (!found.isFile() || found.uid !== expected.uid || !fits)
      throw new Error(`${source} is not what was to be written`);
    await chown(target, 0, 0);
    await chmod(target, 0o444);
    await rm(source);
  } catch (error) {
    await rm(target);
    throw error;
  }
}
