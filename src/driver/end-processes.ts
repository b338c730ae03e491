import { setTimeout as sleep } from "node:timers/promises";
import { AenvError } from "#domain";

const KILL_TIMEOUT_MS = 10_000;

/** Kills what `find` finds until it finds nothing more. `whose`: for the message. Errors: internal, when they do not end. */
export async function endProcesses(whose: string, find: () => readonly number[]): Promise<void> {
  const giveUpAtMs = performance.now() + KILL_TIMEOUT_MS;
  for (let waitMs = 1; ; waitMs = Math.min(waitMs * 2, 50)) {
    const pids = find();
    if (pids.length === 0) return;
    if (performance.now() > giveUpAtMs) {
      throw new AenvError("internal", `processes ${pids.join(", ")} of ${whose} do not end`, {
        hint: "a process that SIGKILL does not end hangs in the kernel: see its /proc/PID/stack",
      });
    }
    for (const pid of pids) {
      try {
        process.kill(pid, "SIGKILL");
      } catch {
        // It ended by itself.
      }
    }
    await sleep(waitMs);
  }
}
