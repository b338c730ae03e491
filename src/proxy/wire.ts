import type { Route, RouteChange } from "#domain";

/**
 * What aenvd tells the edge (`native/internal/edge/routes`), one JSON object a line, over `run/routes.sock`. The first line is the whole table. The epoch is
 * another for each aenvd, whose revisions start anew; acknowledgements name it.
 */
export type FeedLine =
  | { readonly snapshot: { readonly epoch: string; readonly revision: number; readonly routes: readonly Route[] } }
  | { readonly change: RouteChange };

/** What aenvd answers about one sandbox, as of a revision of its table. Without a route: there is no such sandbox. */
export interface RouteAnswer {
  readonly epoch: string;
  readonly revision: number;
  readonly route?: Route;
}

export const FEED_PATH = "/routes";
export const ACK_PATH = "/routes/ack";
export const LOOKUP_PATH = "/routes/of/";
/** Asks for a paused sandbox to be resumed, which its route has to allow. */
export const WAKE_PATH = "/wake/";
/** Asks for one that stands still to go on; one that has been paused meanwhile stays so. */
export const ROUSE_PATH = "/rouse/";

/** Names a forwarder for as long as its process lives. */
export function forwarderName(pid: number, startTicks: bigint): string {
  return `${pid}:${startTicks}`;
}

export function forwarderProcess(name: string): { readonly pid: number; readonly startTicks: bigint } | undefined {
  const match = /^(\d+):(\d+)$/.exec(name);
  if (match?.[1] === undefined || match[2] === undefined) return undefined;
  return { pid: Number(match[1]), startTicks: BigInt(match[2]) };
}
