import { NOTHING_KEPT, type ProcessClient, type ProcessEvent, type StartProcess, type TerminalSize } from "../envd.ts";
import { CliError, EXIT, RpcError } from "../errors.ts";
import type { CliIo } from "../io.ts";

/** Marks the one shell of a sandbox that people come back to. */
export const SHELL_TAG = "aenv-shell";

/** A program that runs on a terminal of its sandbox. */
export interface Opened {
  readonly pid: number;
  /** Its events behind the start. */
  readonly events: AsyncGenerator<ProcessEvent, void>;
  /** Something that it has drawn is not on our terminal. */
  readonly isStale: boolean;
  /** Of all its output, where the events begin; undefined: the agent does not say. */
  readonly offset: number | undefined;
}

/** What a terminal is put on: how to start it, or to find it. Throws RpcError or CliError. */
export interface Program {
  open(client: ProcessClient, size: TerminalSize, signal: AbortSignal): Promise<Opened>;
}

/** Reads the first event, which is the start. `shownTo`: how much of its output our terminal has already. */
export async function began(events: AsyncGenerator<ProcessEvent, void>, shownTo: number): Promise<Opened> {
  const first = await events.next();
  if (first.done || first.value.kind !== "start") {
    throw new CliError(EXIT.failure, "the sandbox's agent did not say that the program has started");
  }
  const { pid, offset } = first.value;
  return { pid, events, offset, isStale: shownTo !== offset };
}

async function started(events: AsyncGenerator<ProcessEvent, void>): Promise<Opened> {
  return { ...(await began(events, 0)), offset: 0, isStale: false };
}

/** Old output is not asked for: questions that programs ask a terminal would be answered once more, into their input. */
async function attached(client: ProcessClient, pid: number, signal: AbortSignal): Promise<Opened> {
  return { ...(await began(client.attach(pid, NOTHING_KEPT, signal), NOTHING_KEPT)), isStale: true };
}

/** A command, started anew on a terminal. */
export function command(process: Omit<StartProcess, "terminal">): Program {
  return {
    open: async (client, size, signal) => started(client.start({ ...process, terminal: size }, signal)),
  };
}

/** A process that runs already. */
export function running(pid: number): Program {
  return { open: async (client, _size, signal) => attached(client, pid, signal) };
}

/** The sandbox's shell: the one that is there, else a new one. `id` is the sandbox, for messages. */
export function shell(io: CliIo, id: string): Program {
  return {
    open: async (client, size, signal) =>
      (await openThere(client, signal)) ?? (await startOne(io, id, client, size, signal)),
  };
}

async function openThere(client: ProcessClient, signal: AbortSignal): Promise<Opened | undefined> {
  const there = (await client.list()).filter(({ tag }) => tag === SHELL_TAG).at(-1);
  if (there === undefined) return undefined;
  try {
    return await attached(client, there.pid, signal);
  } catch (error) {
    // It ended between the two calls.
    if (error instanceof RpcError && error.code === "not_found") return undefined;
    throw error;
  }
}

const SHELLS = ["/bin/bash", "/bin/sh"] as const;

async function startOne(
  io: CliIo,
  id: string,
  client: ProcessClient,
  terminal: TerminalSize,
  signal: AbortSignal,
): Promise<Opened> {
  const envs = { ...terminalEnvs(io), LANG: "C.UTF-8" };
  let missing: unknown;
  for (const cmd of SHELLS) {
    const process = { cmd, args: ["-i", "-l"], envs, terminal, tag: SHELL_TAG, stdin: true };
    try {
      return await started(client.start(process, signal));
    } catch (error) {
      if (!(error instanceof RpcError && error.answered && error.code === "not_found")) throw error;
      missing = error;
    }
  }
  throw new CliError(EXIT.notFound, `${id} has no shell: neither /bin/bash nor /bin/sh is in its image`, {
    hint: "`aenv start TEMPLATE --detach` starts it without one, `aenv exec ID PROGRAM` runs what is there",
    cause: missing,
  });
}

/** What programs on a terminal want to know of ours. */
export function terminalEnvs({ env }: CliIo): Record<string, string> {
  return { TERM: env.TERM || "xterm-256color", ...(env.COLORTERM ? { COLORTERM: env.COLORTERM } : {}) };
}
