import { mkdir, readdir, readFile, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import { AenvError, errorKind, type MachineCapture } from "#domain";
import type { Driver, Machine } from "#driver";
import { fault } from "#lib/fault";
import { isMissing, writeFileAtomic } from "#lib/files";

/** Version of what lies in a checkpoint or snapshot folder around the driver's own files. */
export const CHECKPOINT_FORMAT = 1;

/** `manifest.json` of a checkpoint or snapshot folder; the driver's files lie beside it in `state/`. */
export interface CheckpointManifest {
  readonly formatVersion: number;
  readonly driver: string;
  readonly driverVersion: string;
  readonly arch: string;
  readonly imageDigest: string;
  readonly agentDigest: string;
  readonly createdAtMs: number;
  /** Absent: memory, and all else. */
  readonly capture?: MachineCapture;
  /** File name → bytes; a folder that does not match is not whole. */
  readonly files: Readonly<Record<string, number>>;
}

const MANIFEST = "manifest.json";
const STATE = "state";

/** The folder inside `dir` that the driver reads and writes. */
export function stateDir(dir: string): string {
  return join(dir, STATE);
}

/** Captures a machine into `dir` and describes it there. Not on stable storage yet; `durable`: it is to be. Throws what the driver throws. */
export async function capture(
  driver: Driver,
  machine: Machine,
  dir: string,
  digests: { readonly imageDigest: string; readonly agentDigest: string },
  { what = "memory", durable }: { readonly what?: MachineCapture; readonly durable: boolean },
): Promise<CheckpointManifest> {
  await mkdir(dir, { recursive: true, mode: 0o700 });
  await machine.checkpoint(stateDir(dir), { keepRunning: true, capture: what, durable });
  await fault("checkpoint.written", machine.id);
  const manifest: CheckpointManifest = {
    formatVersion: CHECKPOINT_FORMAT,
    driver: driver.name,
    driverVersion: machine.version,
    arch: process.arch,
    imageDigest: digests.imageDigest,
    agentDigest: digests.agentDigest,
    createdAtMs: Date.now(),
    ...(what === "disk" && { capture: what }),
    files: await sizes(stateDir(dir)),
  };
  await writeFileAtomic(join(dir, MANIFEST), JSON.stringify(manifest));
  return manifest;
}

/** The manifest of a whole checkpoint; undefined when there is none or its files are not what it says. */
export async function readCheckpoint(dir: string): Promise<CheckpointManifest | undefined> {
  try {
    const manifest = JSON.parse(await readFile(join(dir, MANIFEST), "utf8")) as CheckpointManifest;
    const found = await sizes(stateDir(dir));
    const whole = Object.entries(manifest.files).every(([name, size]) => found[name] === size);
    return whole ? manifest : undefined;
  } catch (error) {
    if (isMissing(error) || error instanceof SyntaxError) return undefined;
    throw error;
  }
}

/** False once its removal has begun. */
export async function hasCheckpoint(dir: string): Promise<boolean> {
  try {
    return (await stat(join(dir, MANIFEST))).isFile();
  } catch (error) {
    if (isMissing(error)) return false;
    throw error;
  }
}

/** What whoever asked for a capture that has failed is told: `what` says which, and what became of the sandbox. A conflict says by itself
 *  what to do instead. */
export function captureFailed(cause: unknown, what: string): unknown {
  if (errorKind(cause) === "conflict") return cause;
  return new AenvError("unavailable", what, {
    cause,
    hint: "look for a full disk on the server: its log has the cause",
  });
}

/** Throws (conflict) when this driver cannot restore what the manifest describes. */
export function requireRestorable(
  driver: Driver,
  manifest: Pick<CheckpointManifest, "driver" | "driverVersion" | "arch">,
): void {
  const made = `${manifest.driver} ${manifest.driverVersion} on ${manifest.arch}`;
  const here = `${driver.name} ${driver.version} on ${process.arch}`;
  if (made === here) return;
  throw new AenvError("conflict", `this state was made by ${made}; this server runs ${here}`, {
    hint: "resume it with the server that made it, or build the template again",
  });
}

export function totalBytes(manifest: CheckpointManifest): number {
  return Object.values(manifest.files).reduce((sum, size) => sum + size, 0);
}

/** Removes a checkpoint folder, its description first, so that what is left of it after a crash is not taken for whole. */
export async function removeCheckpoint(dir: string): Promise<void> {
  await rm(join(dir, MANIFEST), { force: true });
  await fault("checkpoint.undescribed");
  await rm(dir, { recursive: true, force: true });
}

async function sizes(dir: string): Promise<Record<string, number>> {
  const names = (await readdir(dir)).sort();
  const stats = await Promise.all(names.map((name) => stat(join(dir, name))));
  return Object.fromEntries(names.map((name, at) => [name, stats[at]?.size ?? 0]));
}
