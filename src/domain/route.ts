import type { SandboxId } from "./sandbox.ts";

/** Where traffic for a sandbox goes: a projection of its record, rebuilt at any time. */
export interface Route {
  readonly sandboxId: SandboxId;
  readonly generation: number;
  /** Present while it runs: the address its ports are reached at from this host. */
  readonly address?: string;
  /** While it is paused: traffic resumes it. */
  readonly autoResume: boolean;
  /** A paused, secured sandbox is woken through its agent's port only by who shows this. */
  readonly accessToken?: string;
  /** Ports but the agent's are open only to who shows this. */
  readonly trafficToken?: string;
  /** What services are told in the place of the Host that was asked; `${PORT}` stands for the port. */
  readonly maskHost?: string;
  /** Opens the agent's way to services that listen on the sandbox's loopback only. Present while it runs. */
  readonly agentKey?: string;
  /** Present while it stands still, or is about to: whoever wants to send has it woken first. A forwarder that uses it now, or did
   *  so many ms ago or less, says so when it takes this in, and goes on. */
  readonly restAfterMs?: number;
}

/** One change of the route table. */
export interface RouteChange {
  readonly revision: number;
  readonly sandboxId: SandboxId;
  /** Absent: the sandbox is gone. */
  readonly route?: Route;
}

/** The route table of a node, as those see it who forward traffic. */
export interface RouteSource {
  /** Of the last change; they start anew with each process. */
  readonly revision: number;
  get(id: SandboxId): Route | undefined;
  snapshot(): { readonly revision: number; readonly routes: readonly Route[] };
  /** Calls `listener` for every change from now on, in order; returns how to stop that. */
  subscribe(listener: (change: RouteChange) => void): () => void;
  /** A forwarder has taken in everything up to this revision and sends nothing by older routes any more; but for `busy`, which
   *  were to stand still and are in use. */
  acknowledge(forwarder: string, revision: number, busy?: readonly SandboxId[]): void;
  /** A forwarder that may hold routes has come (its acknowledgements are waited for) or its process has ended. */
  attach(forwarder: string): void;
  detach(forwarder: string): void;
}
