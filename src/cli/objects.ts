import type { ErrorKind } from "#domain";

/** The fields of the API's objects that the CLI reads. They are printed by `--json` as they came, with all the others. */
export interface SandboxHandle {
  readonly sandboxID: string;
  readonly templateID: string;
  readonly envdAccessToken?: string | null;
}

export interface ListedSandbox {
  readonly sandboxID: string;
  readonly templateID: string;
  readonly alias?: string;
  readonly state: "running" | "paused";
  readonly cpuCount: number;
  readonly memoryMB: number;
  readonly diskSizeMB: number;
  readonly startedAt: string;
  readonly endAt: string;
  /** Of a paused one that the server does not keep for ever. */
  readonly removeAt?: string;
  readonly lineage?: { readonly snapshot: string; readonly forkedFrom?: string };
}

export interface SandboxDetail extends ListedSandbox {
  readonly envdAccessToken?: string | null;
  /** Said to who has asked the server under its domain. */
  readonly domain?: string | null;
  readonly network?: { readonly allowPublicTraffic?: boolean };
}

export interface LogEntry {
  readonly timestamp: string;
  readonly level: string;
  readonly message: string;
  readonly fields?: Readonly<Record<string, string>>;
}

/** Sizes in bytes; `cpuUsedPct` of all processors together. */
export interface Metric {
  readonly timestamp: string;
  readonly cpuUsedPct: number;
  readonly memUsed: number;
  readonly memTotal: number;
  readonly memCache: number;
  readonly diskUsed: number;
  readonly diskTotal: number;
}

export interface Template {
  readonly templateID: string;
  readonly names?: readonly string[];
  readonly aliases?: readonly string[];
  readonly cpuCount: number;
  readonly memoryMB: number;
  readonly diskSizeMB: number;
  readonly createdAt: string;
  readonly buildCount?: number;
  readonly buildStatus?: string;
  readonly lineage?: SnapshotLineage;
}

export interface TemplateDetail extends Pick<Template, "templateID" | "names"> {
  /** Newest first; the newest hundred or so. */
  readonly builds: readonly {
    readonly buildID: string;
    readonly status: BuildInfo["status"];
    readonly tags?: readonly string[];
    readonly lineage?: SnapshotLineage;
  }[];
}

/** Where a captured state comes from. */
export interface SnapshotLineage {
  readonly snapshot: string;
  readonly parent?: string;
  readonly sandboxID?: string;
}

export interface SnapshotInfo {
  readonly snapshotID: string;
  readonly names: readonly string[];
  readonly templateID: string;
  readonly buildCount: number;
  readonly createdAt: string;
  readonly sizeBytes: number;
  readonly lineage: SnapshotLineage;
}

/** For a registry that wants some. */
export interface RegistryLogin {
  readonly username: string;
  readonly password: string;
}

export interface BuildRef {
  readonly templateID: string;
  readonly buildID: string;
}

export interface BuildInfo {
  readonly status: "waiting" | "building" | "ready" | "error";
  readonly logEntries: readonly { readonly timestamp: string; readonly level: string; readonly message: string }[];
  readonly reason?: { readonly message: string; readonly kind?: ErrorKind };
  readonly progress?: BuildProgress;
}

/** Beside what E2B's clients know: how far the image has come. Totals are 0 while unknown. */
export interface BuildProgress {
  readonly phase: string;
  readonly doneBytes: number;
  readonly totalBytes: number;
  readonly layersDone: number;
  readonly layersTotal: number;
}

export type ForkOutcome =
  | { readonly sandbox: SandboxHandle; readonly error?: undefined }
  | { readonly sandbox?: undefined; readonly error: { readonly code: number; readonly message: string } };

export interface CreateSandbox {
  readonly templateID: string;
  /** Seconds. */
  readonly timeout: number;
  readonly envVars?: Readonly<Record<string, string>>;
  readonly metadata?: Readonly<Record<string, string>>;
}

export interface ListFilter {
  readonly states?: readonly string[];
  readonly metadata?: Readonly<Record<string, string>>;
}
