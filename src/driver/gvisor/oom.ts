import { readFileSync, type Stats, statSync, writeFileSync } from "node:fs";
import { commandLine } from "#lib/proc";

/**
 * Who dies when a machine reaches its memory limit. The kernel picks by memory, and the sandbox process holds that of the
 * whole guest: left alone it kills the machine. So all processes that run guest programs are offered first (what is started
 * later inherits it), except those that run the agent, and these, the sandbox and the gofer later. See
 * docs/decisions/0046-the-sandbox-is-offered-last.md.
 */
const FIRST = 1000;
/** What the sandbox may have mapped beyond what counts against the limit: its own program, and page tables. */
const UNCOUNTED_PAGES = 12_000;
/** Services are at -900: when the host itself runs out, machines go first. */
const LATER_MIN = -500;
const PAGE_BYTES = 4096;
const MAPPED_AGENT = /^([0-9a-f]+)-([0-9a-f]+) .*\/envd$/gm;

/** What is added to the badness of those that are offered later: a score counts in thousandths of the limit, so FIRST alone makes up for
 *  no more than all that counts against it. */
export function laterScore(limitBytes: number): number {
  const pages = Math.floor(limitBytes / PAGE_BYTES / 1000);
  return Math.max(LATER_MIN, -Math.ceil(UNCOUNTED_PAGES / Math.max(1, pages)));
}

/** Sorts the machine's processes. True when one that runs the agent, the program at `agentPath`, was among them: the sandbox
 *  makes it at the agent's first step, which may come after the start has returned. */
export function protectAgent(
  pids: readonly number[],
  sandboxPid: number,
  { agentPath, limitBytes }: { readonly agentPath: string; readonly limitBytes: number },
): boolean {
  // The second where the kernel refuses the first: without CAP_SYS_RESOURCE none goes below what it was started with.
  const later = [laterScore(limitBytes), 0];
  const agent = statSync(agentPath, { throwIfNoEntry: false });
  let agentSeen = false;
  for (const pid of pids) {
    const runsAgent = agent !== undefined && pid !== sandboxPid && maps(pid, agent);
    agentSeen ||= runsAgent;
    setScore(pid, runsAgent || isRuntime(pid, sandboxPid) ? later : [FIRST]);
  }
  return agentSeen;
}

function isRuntime(pid: number, sandboxPid: number): boolean {
  return pid === sandboxPid || commandLine(pid)[0]?.startsWith("runsc-") === true;
}

/** Whether a process has mapped this very file: an image may bring another one of the same name. */
export function maps(pid: number, file: Pick<Stats, "dev" | "ino">): boolean {
  try {
    for (const [, from = "", to = ""] of readFileSync(`/proc/${pid}/maps`, "utf8").matchAll(MAPPED_AGENT)) {
      // The device that `maps` itself names is not the one `stat` does on some file systems.
      const mapped = statSync(`/proc/${pid}/map_files/${unpadded(from)}-${unpadded(to)}`);
      if (mapped.dev === file.dev && mapped.ino === file.ino) return true;
    }
  } catch {
    // It has just ended, or unmapped it.
  }
  return false;
}

function unpadded(address: string): string {
  return address.replace(/^0+(?=.)/, "");
}

function setScore(pid: number, scores: readonly number[]): void {
  for (const score of scores) {
    try {
      writeFileSync(`/proc/${pid}/oom_score_adj`, String(score));
      return;
    } catch {
      // It has just ended, or is not to be lowered: where all that this server starts is above 0, the difference to FIRST does.
    }
  }
}
