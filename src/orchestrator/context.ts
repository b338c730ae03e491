import type { SandboxId } from "#domain";
import type { Logger } from "#lib/log";
import type { Telemetry } from "#telemetry";
import type { Background } from "./background.ts";
import type { Collector } from "./collector.ts";
import type { Entries } from "./entries.ts";
import type { Ladder } from "./ladder/ladder.ts";
import type { SwapRoom } from "./ladder/reclaimer.ts";
import type { LaunchDeps } from "./launch.ts";
import type { Journal } from "./record.ts";

/** What every operation of a node works with. */
export interface Context extends LaunchDeps {
  readonly journal: Journal;
  readonly logger: Logger;
  readonly entries: Entries;
  /** What stands ready: clones of snapshots, copies of paused sandboxes. */
  readonly ladder: Ladder;
  /** A sandbox that was idle for so long is frozen; undefined: none is. */
  readonly idleAfterMs: number | undefined;
  /** A paused sandbox is kept so long after its pause; undefined: until somebody kills it. */
  readonly pausedRetentionMs: number | undefined;
  /** Where the memory of frozen ones goes; undefined: it stays. */
  readonly swap: SwapRoom | undefined;
  /** What sandboxes use and what happens in them, and who brings it there. */
  readonly telemetry: Telemetry;
  readonly collector: Collector;
  /** Work that goes on after an answer, owned here. */
  readonly background: Background;
  /** The agent that new snapshots get. */
  readonly agentDigest: string;
  readonly envdVersion: string;
}

/** Who holds a sandbox's image. */
export function sandboxLease(id: SandboxId): string {
  return `sandbox:${id}`;
}

export function snapshotLease(id: string): string {
  return `snapshot:${id}`;
}

/** Leases of images imported by hand: held until the next start of the server, so that a template can be made meanwhile. */
export const IMPORT_LEASE = "import:";
