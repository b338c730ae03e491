import { setTimeout as sleep } from "node:timers/promises";
import { AenvError, type StartCommands, type StartEvent } from "#domain";
import type { Machine } from "#driver";
import type { CommandEnd, GuestShell } from "#guest";

/** E2B's: how often and how long a template is asked whether it is ready, and what stands for a ready command. */
const READY_EVERY_MS = 2_000;
const READY_WITHIN_MS = 600_000;
const DEFAULT_READY_CMD = "sleep 20";
/** How long a start command may say nothing before it is asked whether it is ready: what it says first comes first in the log. */
const FIRST_WORD_WITHIN_MS = 1_000;
/** Of a command that failed, for its error. */
const LAST_LINES = 10;

export interface StartDeps {
  readonly shell: Pick<GuestShell, "run">;
  readonly machine: Pick<Machine, "exited">;
  readonly onEvent: (event: StartEvent) => void;
  readonly signal: AbortSignal;
  readonly firstWordWithinMs?: number;
  readonly readyWithinMs?: number;
}

/**
 * Starts what a template's sandboxes are to find running, and returns when it is ready; it goes on. Without commands there is
 * nothing to do. Errors: invalid (a command cannot be run; the start command failed), deadline (never ready), unavailable (the
 * machine ended).
 */
export async function runStartCommands(deps: StartDeps, commands: StartCommands): Promise<void> {
  const { startCmd, readyCmd = startCmd === undefined ? undefined : DEFAULT_READY_CMD } = commands;
  if (readyCmd === undefined) return;
  const over = new AbortController();
  const signal = AbortSignal.any([deps.signal, over.signal]);
  const failures: Promise<never>[] = [machineEnds(deps)];
  const begun = Promise.withResolvers<void>();
  if (startCmd === undefined) begun.resolve();
  else {
    deps.onEvent({ kind: "starting" });
    failures.push(startFails(deps, startCmd, begun.resolve, signal));
  }
  try {
    await Promise.race([untilReady(deps, readyCmd, begun.promise, signal), ...failures]);
    deps.onEvent({ kind: "ready" });
  } finally {
    over.abort();
    // They lose the race for good now; nobody else looks at them.
    for (const failure of failures) failure.catch(() => {});
  }
}

function machineEnds({ machine }: StartDeps): Promise<never> {
  return machine.exited.then((exit) => {
    throw new AenvError(
      "unavailable",
      `the machine ended while the template was started: ${exit.detail ?? exit.reason}`,
    );
  });
}

/**
 * Rejects when the start command fails. One that ends well has done its part: it may have left something in the background.
 * `onBegun`: it has said something, or ended.
 */
async function startFails(
  { shell, onEvent }: StartDeps,
  startCmd: string,
  onBegun: () => void,
  signal: AbortSignal,
): Promise<never> {
  const last: string[] = [];
  const onLine = (stream: "stdout" | "stderr", line: string): void => {
    keepLast(last, line);
    onEvent({ kind: "output", stream, line });
    onBegun();
  };
  const end = await shell.run(startCmd, onLine, signal);
  if (end.exitCode !== 0) throw new AenvError("invalid", `start command failed: ${wordsOf(end, last)}`);
  onBegun();
  return await new Promise<never>(() => {});
}

async function untilReady(deps: StartDeps, readyCmd: string, begun: Promise<void>, signal: AbortSignal): Promise<void> {
  const { firstWordWithinMs = FIRST_WORD_WITHIN_MS, readyWithinMs = READY_WITHIN_MS } = deps;
  const silence = sleep(firstWordWithinMs, undefined, { signal }).catch(() => signal.throwIfAborted());
  await Promise.race([begun, silence]);
  deps.onEvent({ kind: "waiting", readyCmd });
  const late = AbortSignal.timeout(readyWithinMs);
  const both = AbortSignal.any([signal, late]);
  let seen = "it has not ended once";
  try {
    for (;;) {
      const last: string[] = [];
      const end = await deps.shell.run(readyCmd, (_, line) => keepLast(last, line), both);
      if (end.exitCode === 0) return;
      seen = wordsOf(end, last);
      await sleep(READY_EVERY_MS, undefined, { signal: both });
    }
  } catch (error) {
    signal.throwIfAborted();
    if (!late.aborted) throw error;
    throw new AenvError(
      "deadline",
      `the template is not ready after ${readyWithinMs / 1000} s; the ready command: ${seen}`,
      { cause: error },
    );
  }
}

function keepLast(last: string[], line: string): void {
  last.push(line);
  if (last.length > LAST_LINES) last.shift();
}

function wordsOf({ status }: CommandEnd, last: readonly string[]): string {
  return last.length === 0 ? status : `${status}\n${last.join("\n")}`;
}
