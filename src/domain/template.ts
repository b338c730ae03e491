import type { ErrorKind } from "./errors.ts";
import type { Resources } from "./resources.ts";
import type { MachineCapture, SandboxId } from "./sandbox.ts";

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
  /** Absent: memory, and all else. `disk`: a sandbox of it is booted. */
  readonly capture?: MachineCapture;
  /** What `/init` of the restored agent asks for before it takes new identity. */
  readonly initKey: string;
  readonly resources: Resources;
  /** Of the template, for every sandbox; never what a captured sandbox was given at its own create. */
  readonly env: Readonly<Record<string, string>>;
  readonly defaultUser: string;
  readonly defaultWorkdir?: string;
  /** What a sandbox of it runs when it is booted anew; absent: nothing. */
  readonly boot?: BootCommands;
  readonly sizeBytes: number;
  readonly createdAtMs: number;
  /** Of a captured sandbox: the snapshot that it was started from, which may be gone. Absent: a template's build made it. */
  readonly parentId?: string;
  /** The sandbox that was captured, which may be gone. */
  readonly sandboxId?: SandboxId;
}

/** Shell commands of a template: what is started before it is captured and goes on in every sandbox of it, and what ends with
 *  0 when that is ready to be captured. */
export interface StartCommands {
  readonly startCmd?: string;
  readonly readyCmd?: string;
}

/** What a machine that is booted runs, and a restored one finds running. */
export interface BootCommands extends StartCommands {
  /** Command line of the image's own init, where the driver runs it. */
  readonly init?: readonly string[];
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

export type TemplateKind = "snapshot";

export interface Template {
  /** 20 of [a-z0-9]. */
  readonly id: string;
  /** Absent: builds make it. "snapshot": its builds are captured sandboxes; it may have no name. */
  readonly kind?: TemplateKind;
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
