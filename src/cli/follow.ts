import { setTimeout as sleep } from "node:timers/promises";
import type { ApiClient } from "./api.ts";
import type { Context } from "./context.ts";
import { ApiError, CliError, EXIT } from "./errors.ts";
import { onEnding } from "./io.ts";

const EVERY_MS = 1000;
/** How long the server may be away (a restart) before we stop asking. */
const PATIENCE_MS = 60_000;

/**
 * Calls `show` again and again until the sandbox has ended, through its pauses and through restarts of the server. Returns 0
 * then, 130 when interrupted. Throws what `show` throws for a sandbox that was never there.
 */
export async function followSandbox(
  { io, out }: Context,
  api: ApiClient,
  id: string,
  show: (signal: AbortSignal) => Promise<void>,
): Promise<number> {
  const stop = new AbortController();
  const interrupted = new CliError(EXIT.interrupted, "interrupted");
  const forget = onEnding(io, () => stop.abort(interrupted));
  let lastMs: number | undefined;
  try {
    for (;;) {
      try {
        // Asked first: what was written before the end is shown after it.
        const ended = await hasEnded(api, id, stop.signal);
        await show(stop.signal);
        lastMs = Date.now();
        if (ended) {
          await out.note(`${id} has ended.`);
          return EXIT.ok;
        }
      } catch (error) {
        stop.signal.throwIfAborted();
        const mayPass = error instanceof CliError && error.exitCode === EXIT.unavailable;
        // A server that was never there is not waited for.
        if (!mayPass || lastMs === undefined || Date.now() - lastMs > PATIENCE_MS) throw error;
      }
      await sleep(EVERY_MS, undefined, { signal: stop.signal }).catch(() => {});
      stop.signal.throwIfAborted();
    }
  } catch (error) {
    if (error === interrupted) return EXIT.interrupted;
    throw error;
  } finally {
    forget();
    stop.abort(interrupted);
  }
}

async function hasEnded(api: ApiClient, id: string, signal: AbortSignal): Promise<boolean> {
  try {
    await api.getSandbox(id, signal);
    return false;
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return true;
    throw error;
  }
}
