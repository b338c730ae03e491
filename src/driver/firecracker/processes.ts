import { readdirSync, readFileSync } from "node:fs";
import { connect } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { AenvError } from "#domain";

const KILL_TIMEOUT_MS = 10_000;

/** Ends the processes of a jail. `knownPid`: its only one, where somebody has written it down; else it is looked for among all.
 *  Errors: internal, when they do not end. */
export async function endProcesses(id: string, knownPid: () => number | undefined): Promise<void> {
  const giveUpAtMs = performance.now() + KILL_TIMEOUT_MS;
  for (let waitMs = 1; ; waitMs = Math.min(waitMs * 2, 50)) {
    const known = knownPid();
    const pids = known === undefined ? processesOf(id) : [known].filter((pid) => isOf(pid, id));
    if (pids.length === 0) return;
    if (performance.now() > giveUpAtMs) {
      throw new AenvError("internal", `processes ${pids.join(", ")} of jail ${id} do not end`, {
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

/** Jailer and Firecracker both have their jail's id on their command lines. */
export function isOf(pid: number, id: string): boolean {
  try {
    const args = readFileSync(`/proc/${pid}/cmdline`, "utf8").split("\0");
    const at = args.indexOf("--id");
    return at >= 0 && args[at + 1] === id;
  } catch {
    return false;
  }
}

function processesOf(id: string): number[] {
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .map(Number)
    .filter((pid) => isOf(pid, id));
}

/** Whether somebody listens at a unix socket. */
export function accepts(path: string): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(path);
    socket.once("connect", () => {
      socket.destroy();
      resolve(true);
    });
    socket.once("error", () => resolve(false));
  });
}
