import type { ErrorKind } from "./errors.ts";
import type { Resources } from "./resources.ts";

/** A machine's state at rest, complete: what a sandbox starts from. The files lie on the node that made it. */
export interface Snapshot {
  /** 20 of [a-z0-9]. */
  readonly id: string;
  readonly driver: string;
  /** The runtime's own version; a snapshot is restored only by the version that made it. */
  readonly driverVersion: string;
  readonly arch: string;
  readonly formatVersion: number;
  readonly imageDigest: string;
  /** SHA-256 of the agent it was made with; it resumes with that very agent. */
  readonly agentDigest: string;
  readonly envdVersion: string;
  /** What `/init` of the restored agent asks for before it takes new identity. */
  readonly initKey: string;
  readonly resources: Resources;
  readonly env: Readonly<Record<string, string>>;
  readonly defaultUser: string;
  readonly defaultWorkdir?: string;
  readonly sizeBytes: number;
  readonly createdAtMs: number;
}

/** Shell commands of a template: what is started before it is captured and goes on in every sandbox of it, and what ends with
 *  0 when that is ready to be captured. */
export interface StartCommands {
  readonly startCmd?: string;
  readonly readyCmd?: string;
}

export type BuildStatus = "waiting" | "building" | "ready" | "error";

export interface BuildLogEntry {
  readonly atMs: number;
  readonly level: "debug" | "info" | "warn" | "error";
  readonly message: string;
  readonly step?: string;
}

/** One attempt to make a template. A ready build points to one snapshot. */
export interface Build {
  /** UUID (Python's SDK parses it as one). */
  readonly id: string;
  readonly templateId: string;
  readonly status: BuildStatus;
  readonly resources: Resources;
  readonly snapshot?: Snapshot;
  /** Why it failed; `step` as E2B's SDK maps it (`base`, `finalize`, or the step's number). */
  readonly reason?: { readonly message: string; readonly kind: ErrorKind; readonly step?: string };
  readonly createdAtMs: number;
  readonly finishedAtMs?: number;
}

export interface Template {
  /** 20 of [a-z0-9]. */
  readonly id: string;
  /** Names without tag, lower case; the first is shown as its alias. */
  readonly names: readonly string[];
  /** tag → build id. A sandbox asked without a tag starts from `default`. */
  readonly tags: Readonly<Record<string, string>>;
  readonly public: boolean;
  readonly spawnCount: number;
  readonly buildCount: number;
  readonly lastSpawnedAtMs?: number;
  readonly createdAtMs: number;
  readonly updatedAtMs: number;
}

export const DEFAULT_TAG = "default";
