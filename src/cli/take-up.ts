import { setTimeout as sleep } from "node:timers/promises";
import type { ApiClient } from "./api.ts";
import { ApiError, CliError, RpcError } from "./errors.ts";

const TRIES = 12;
const WAIT_MAX_MS = 5000;
/** The first tries are too quick to be worth a word. */
const QUIET_TRIES = 2;

/** Why there is nothing to come back to. */
export type Lost =
  | { readonly kind: "paused" }
  | { readonly kind: "gone" }
  | { readonly kind: "ended" }
  | { readonly kind: "lost"; readonly why: string };

/**
 * Takes a broken connection to a program up again, as long as its sandbox runs. `open` throws RpcError or CliError while it cannot;
 * `onWaiting` is told when that takes a while. Throws the signal's reason.
 */
export async function takeUpAgain<Opened extends object>(
  api: ApiClient,
  id: string,
  broken: RpcError,
  signal: AbortSignal,
  open: () => Promise<Opened>,
  onWaiting: () => Promise<void> = async () => {},
): Promise<Opened | Lost> {
  let why: Error = broken;
  for (let tries = 0; tries < TRIES; tries += 1) {
    if (tries > 0) await sleep(Math.min(WAIT_MAX_MS, 100 * 2 ** tries), undefined, { signal }).catch(() => {});
    signal.throwIfAborted();
    if (tries === QUIET_TRIES) await onWaiting();
    try {
      const { state } = await api.getSandbox(id, signal);
      if (state === "paused") return { kind: "paused" };
      return await open();
    } catch (error) {
      signal.throwIfAborted();
      if (error instanceof ApiError && error.status === 404) return { kind: "gone" };
      if (error instanceof RpcError && error.answered && error.code === "not_found") {
        return { kind: "ended" };
      }
      if (!(error instanceof CliError)) throw error;
      why = error;
    }
  }
  return { kind: "lost", why: why.message };
}

export function whyLost(id: string, lost: Lost): string {
  if (lost.kind === "paused") return `${id} was paused, with the program in it; \`aenv resume ${id}\` lets it go on`;
  if (lost.kind === "ended") return `lost the program in ${id}: it ended while the connection was down`;
  if (lost.kind === "lost") return `lost the program in ${id}: ${lost.why}`;
  return `${id} is gone: deleted, or its time was over`;
}
