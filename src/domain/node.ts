import type { Image, ImageSource, PullProgress } from "./image.ts";
import type { Resources } from "./resources.ts";
import type { Sandbox, SandboxId, SandboxSpec } from "./sandbox.ts";
import type { Snapshot } from "./template.ts";

/**
 * One host's sandboxes, as the control side sees it: the only place where the two sides meet. The orchestrator is the
 * near one; a far one speaks the same over the wire. Every method may be called from many clients at once; for one
 * sandbox they are carried out one at a time, in the order of arrival, and delete always wins.
 */
export interface Node {
  /** Restores a ready snapshot as a new sandbox and returns when its agent answers. The timeout counts from then.
   *  Errors: not-found (snapshot not here), exhausted, unavailable. Nothing is left behind on error. */
  create(spec: SandboxSpec, snapshot: Snapshot): Promise<Sandbox>;

  /** undefined: there is none. Killing ones are already gone. */
  get(id: SandboxId): Sandbox | undefined;
  /** Newest first (by startedAtMs, then id). */
  list(): Sandbox[];

  /** Ends a sandbox in any state. Errors: not-found. */
  kill(id: SandboxId): Promise<void>;
  /** Returns when the state is on stable storage and the machine is gone. Concurrent calls join.
   *  Errors: not-found, conflict (`already paused`). */
  pause(id: SandboxId): Promise<void>;
  /** Makes sure the sandbox runs: a paused one is restored (waits for a pause under way first), a running one is left as
   *  it is. `resumed` tells which. `timeoutMs` only ever extends a running one's life; for a resumed one it is the new
   *  timeout (absent: the one of its spec). Errors: not-found, unavailable. */
  connect(id: SandboxId, timeoutMs?: number): Promise<{ sandbox: Sandbox; resumed: boolean }>;
  /** As connect, but a running sandbox is a conflict. */
  resume(id: SandboxId, timeoutMs?: number): Promise<Sandbox>;
  /** Sets the end of life to now + timeoutMs; 0 ends it now (by its timeout action). Errors: not-found, conflict (paused). */
  setTimeout(id: SandboxId, timeoutMs: number): Promise<void>;
  /** As setTimeout, but never shortens. */
  extendTimeout(id: SandboxId, timeoutMs: number): Promise<void>;
  /** `count` copies from one moment of a running sandbox, which goes on running. One result for each.
   *  Errors for all: not-found, conflict (paused). */
  fork(id: SandboxId, count: number, timeoutMs?: number): Promise<ForkResult[]>;

  /** Brings an image here (or finds it) and holds it for `holder`. */
  pullImage(
    source: ImageSource,
    holder: string,
    onProgress: (progress: PullProgress) => void,
    signal: AbortSignal,
  ): Promise<Image>;
  /** Boots the image once, waits for its agent, and captures it. */
  makeSnapshot(request: SnapshotRequest, signal: AbortSignal): Promise<Snapshot>;
  /** Removes a snapshot's files and its hold on the image. Repeatable. */
  deleteSnapshot(snapshotId: string): Promise<void>;
  /** Ends what `pullImage` holds for `holder`. Repeatable. */
  releaseImages(holder: string): Promise<void>;

  stats(): NodeStats;
}

export type ForkResult = { readonly sandbox: Sandbox } | { readonly error: Error };

export interface SnapshotRequest {
  readonly image: Image;
  readonly resources: Resources;
  readonly env: Readonly<Record<string, string>>;
  readonly defaultUser: string;
  readonly defaultWorkdir?: string;
}

export interface NodeStats {
  readonly running: number;
  readonly paused: number;
  readonly slotsFree: number;
  readonly slotsTotal: number;
}
