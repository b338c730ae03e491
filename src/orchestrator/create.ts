import type { Sandbox } from "#domain";
import type { Context } from "./context.ts";
import type { Entry } from "./entry.ts";
import { forget } from "./kill.ts";
import { bringUp, type StateSource } from "./run.ts";

/** Creates the entry's sandbox (state `creating`) from a captured state. On error nothing of it is left. */
export async function create(context: Context, entry: Entry, source: StateSource): Promise<Sandbox> {
  context.entries.add(entry);
  try {
    await context.journal.save(entry.record);
    await bringUp(context, entry, source, entry.sandbox.spec.timeoutMs);
    return entry.sandbox;
  } catch (error) {
    // What cannot be removed now is doomed, and the reaper tries again.
    await forget(context, entry).catch((undoing: unknown) =>
      context.logger.error("a failed create could not be undone yet", { sandboxId: entry.id, error: undoing }),
    );
    throw error;
  }
}
