import type { ApiClient, SandboxHandle } from "../api.ts";
import type { Context } from "../context.ts";
import { CliError, EXIT } from "../errors.ts";
import type { CliIo } from "../io.ts";
import { REFRESH_MAX_S } from "../keepalive.ts";
import { formatTime } from "../output.ts";
import { shell } from "./program.ts";
import { attachTerminal, type Ending } from "./session.ts";

export interface ShellOptions {
  /** How long the sandbox should live after the terminal leaves; it is prolonged to that while attached. */
  readonly timeoutS: number;
  /** Called once, when the shell's output is connected. */
  onAttached?(): void;
}

/** Throws CliError (usage) where nobody could type. To be asked before anything is started. */
export function requireTerminal(io: CliIo, otherwise: string): void {
  if (io.stdin.isTTY && io.stdout.isTTY) return;
  throw new CliError(EXIT.usage, "a shell needs a terminal, and standard input or output is none", { hint: otherwise });
}

/** Attaches the terminal to the sandbox's shell and says afterwards how things stand. Returns the exit code. */
export async function enter(
  context: Context,
  api: ApiClient,
  sandbox: SandboxHandle,
  options: ShellOptions,
): Promise<number> {
  const id = sandbox.sandboxID;
  const program = shell(context.io, id);
  const ending = await attachTerminal(context.io, api, sandbox, program, { ...options, ctrlPQ: true });
  // A shell that ended has left the cursor at the start of a line; everything else may happen in the middle of one.
  const fresh = ending.kind === "exited" ? "" : "\n";
  await context.out.note(`${fresh}${FAREWELLS[ending.kind](id, ending)}${await outlook(api, id, ending, options)}`);
  if (ending.kind === "exited" || ending.kind === "signal") return ending.exitCode;
  return ending.kind === "detached" ? EXIT.ok : EXIT.interrupted;
}

const FAREWELLS: Readonly<Record<Ending["kind"], (id: string, ending: Ending) => string>> = {
  exited: (id) => `The shell in ${id} has ended.`,
  detached: (id) => `Detached; the shell in ${id} goes on.`,
  signal: (id) => `Interrupted; the shell in ${id} goes on.`,
  paused: (id) => `${id} was paused. \`aenv cn ${id}\` resumes it with its shell.`,
  gone: (id) => `${id} is gone: deleted, or its time was over.`,
  ended: (id) => `Lost the shell in ${id}: it ended while the connection was down.`,
  lost: (id, ending) => `Lost the shell in ${id}${ending.kind === "lost" ? `: ${ending.why}` : ""}.`,
};

/** How long the sandbox lives on, counted from now, how to come back and how to end it. */
async function outlook(api: ApiClient, id: string, ending: Ending, { timeoutS }: ShellOptions): Promise<string> {
  if (ending.kind === "paused" || ending.kind === "gone") return "";
  const ways = `\n  aenv cn ${id}   ${ending.kind === "exited" ? "a new shell in it" : "back to the shell"}\n  aenv rm ${id}   the end of it`;
  try {
    const signal = AbortSignal.timeout(3000);
    await api.refresh(id, Math.min(REFRESH_MAX_S, timeoutS), signal);
    const { endAt } = await api.getSandbox(id, signal);
    return ` The sandbox runs until ${formatTime(endAt)}.${ways}`;
  } catch {
    // The server is not there; what is known without it has been said.
    return ways;
  }
}
