import type { Resources } from "./resources.ts";

/** Opaque id of a sandbox: `i` and 19 of [a-z0-9], fixed length, safe as a DNS label and as a path. */
export type SandboxId = string;

/**
 * Where a sandbox is in its life. The wire knows only running and paused.
 *
 *   creating ─► running ─► pausing ─► paused ─► resuming ─► running
 *                │ ▲ │ ▲
 *                │ │ ▼ └─ thawing ◄─ frozen
 *                │ │ freezing ─────────▲
 *                ▼ │
 *       forking, snapshotting      any ─► killing ─► (gone)
 *
 * A frozen one is idle and stands still: for whoever asks from outside it runs.
 */
export type SandboxState =
  | "creating"
  | "running"
  | "freezing"
  | "frozen"
  | "thawing"
  | "forking"
  | "snapshotting"
  | "pausing"
  | "paused"
  | "resuming"
  | "killing";

/** What happens when the time is up. */
export type TimeoutAction = "kill" | "pause";

/** What is kept of a machine: all of it, or only what is on its disk, from which it is booted again. */
export type MachineCapture = "memory" | "disk";

/** What may leave a sandbox. Inside it the deny-by-default of every slot (host, neighbours, private ranges) always holds. */
export interface NetworkPolicy {
  /** false: nothing leaves the sandbox but answers to connections made to it. */
  readonly internet: boolean;
}

/** Who reaches a sandbox's ports, and what its services are told. The agent's port has rules of its own. */
export interface TrafficPolicy {
  /** false: only who shows the sandbox's traffic token. */
  readonly isPublic: boolean;
  /** In the place of the Host that was asked; `${PORT}` stands for the port. Absent: as it was asked. */
  readonly maskHost?: string;
}

/** What a user asks for. Durations in ms, sizes in bytes; fixed for the life of the sandbox except `timeoutMs`. */
export interface SandboxSpec {
  readonly templateId: string;
  /** The name the template was asked by, shown back as `alias`. */
  readonly alias?: string;
  readonly resources: Resources;
  /** Variables of every process started inside; the request's override the template's. */
  readonly env: Readonly<Record<string, string>>;
  readonly metadata: Readonly<Record<string, string>>;
  readonly network: NetworkPolicy;
  /** Absent: public, and told the Host that was asked. */
  readonly traffic?: TrafficPolicy;
  readonly timeoutMs: number;
  readonly onTimeout: TimeoutAction;
  /** What a pause at the timeout keeps. Absent: memory. */
  readonly timeoutCapture?: MachineCapture;
  /** Traffic to a paused sandbox resumes it. */
  readonly autoResume: boolean;
  /** A secured sandbox's agent answers only to its access token. */
  readonly secure: boolean;
  /** User and folder of processes that name none. */
  readonly defaultUser: string;
  readonly defaultWorkdir?: string;
}

/** One sandbox as its node knows it. */
export interface Sandbox {
  readonly id: SandboxId;
  /** Grows on each create and resume: an id is not an incarnation. Late events name it and are ignored on mismatch. */
  readonly generation: number;
  readonly state: SandboxState;
  readonly spec: SandboxSpec;
  /** The snapshot it was first started from; a fork's is its source's. */
  readonly snapshotId: string;
  /** The sandbox it is a fork of, which may be gone. */
  readonly forkedFrom?: SandboxId;
  /** Present when `spec.secure`. Stable over pause and resume, never inherited by a fork. */
  readonly accessToken?: string;
  /** Present when its traffic is not public; as stable, and as little inherited. */
  readonly trafficToken?: string;
  readonly envdVersion: string;
  readonly startedAtMs: number;
  /** When the timeout strikes; for a paused sandbox, when it was paused. */
  readonly endAtMs: number;
  /** Of a paused one that its node does not keep for ever: when it is removed. Told, not recorded. */
  readonly removeAtMs?: number;
}
