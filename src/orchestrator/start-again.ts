import { GuestShell } from "#guest";
import type { Context } from "./context.ts";
import type { Entry, Incarnation } from "./entry.ts";
import { takeDown } from "./kill.ts";
import { runStartCommands } from "./start-commands.ts";

/** Longer than this nobody waits for what a template starts: the sandbox is of use without it. */
const READY_WITHIN_MS = 15_000;
/** What stands for a ready command: it is enough that the start command has begun. */
const ALWAYS_READY = "true";

/**
 * Starts in a machine that was booted anew what its template starts, and waits until that is ready. A start command that
 * fails, or is not ready in time, is logged, and the sandbox runs without it: its files are what it was kept for. Throws when the
 * machine ended meanwhile; it is taken down then.
 */
export async function startAgain(context: Context, entry: Entry, incarnation: Incarnation): Promise<void> {
  const { boot, sandbox } = entry.record;
  if (boot?.startCmd === undefined) return;
  const { machine, slot } = incarnation;
  const shell = new GuestShell(slot.hostAddress, sandbox.accessToken);
  let ended = false;
  void machine.exited.then(() => {
    ended = true;
  });
  try {
    await runStartCommands(
      {
        shell,
        machine,
        onEvent: () => {},
        signal: AbortSignal.timeout(2 * READY_WITHIN_MS),
        readyWithinMs: READY_WITHIN_MS,
      },
      { startCmd: boot.startCmd, readyCmd: boot.readyCmd ?? ALWAYS_READY },
    );
  } catch (error) {
    if (ended) {
      await takeDown(context, entry, incarnation);
      throw error;
    }
    context.logger.warn("a rebooted sandbox runs without what its template starts", { sandboxId: entry.id, error });
  } finally {
    shell.close();
  }
}
