import { readFileSync, type Stats, statSync, writeFileSync } from "node:fs";
import { commandLine } from "#lib/proc";

/**
 * Who dies when a machine reaches its memory limit. The kernel picks by memory, and the sandbox process holds that of the
 * whole guest: left alone it kills the machine. So all processes that run guest programs are offered first (what is started
 * later inherits it), except those that run the agent, and these, the sandbox and the gofer later. Not below what any
 * process has: when the host itself runs out, machines go before the services that keep them.
 */
const FIRST = "1000";
const LATER = "0";
const MAPPED_AGENT = /^([0-9a-f]+)-([0-9a-f]+) .*\/envd$/gm;

/** Sorts the machine's processes. True when one that runs the agent, the program at `agentPath`, was among them: the sandbox
 *  makes it at the agent's first step, which may come after the start has returned. */
export function protectAgent(pids: readonly number[], sandboxPid: number, agentPath: string): boolean {
  const agent = statSync(agentPath, { throwIfNoEntry: false });
  let agentSeen = false;
  for (const pid of pids) {
    const runsAgent = agent !== undefined && pid !== sandboxPid && maps(pid, agent);
    agentSeen ||= runsAgent;
    setScore(pid, runsAgent || isRuntime(pid, sandboxPid) ? LATER : FIRST);
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

function setScore(pid: number, score: string): void {
  try {
    writeFileSync(`/proc/${pid}/oom_score_adj`, score);
  } catch {
    // It has just ended, or all that this server starts is above 0 and it may not lower that (it lacks CAP_SYS_RESOURCE):
    // then the difference to FIRST does.
  }
}
