import type { ApiClient, SandboxHandle } from "../api.ts";
import type { Context } from "../context.ts";
import { CliError, EXIT } from "../errors.ts";
import { whyLost } from "../take-up.ts";
import type { Program } from "./program.ts";
import { attachTerminal } from "./session.ts";

export interface InteractOptions {
  readonly user?: string;
  /** The sandbox is prolonged to this while attached; absent = somebody else sees to it. */
  readonly timeoutS?: number;
  /** The program goes on when the terminal leaves: says how to come back. Otherwise it ends with its sandbox. */
  readonly canComeBack: boolean;
}

/** Attaches the terminal to a program and returns its exit code, 0 after leaving. Throws CliError (interrupted) when the
 *  sandbox was paused, has gone, or could not be reached any more. */
export async function interact(
  context: Context,
  api: ApiClient,
  sandbox: SandboxHandle,
  program: Program,
  { user, timeoutS, canComeBack }: InteractOptions,
): Promise<number> {
  let pid: number | undefined;
  const onAttached = (attached: number): void => {
    pid = attached;
  };
  const ending = await attachTerminal(context.io, api, sandbox, program, {
    ...(user === undefined ? {} : { user }),
    ...(timeoutS === undefined ? {} : { timeoutS }),
    // Who knows these keys from docker expects the program to go on.
    ctrlPQ: canComeBack,
    onAttached,
  });
  if (ending.kind === "exited") return ending.exitCode;
  if (pid === undefined) throw new CliError(EXIT.interrupted, "interrupted");
  const back = canComeBack ? { hint: `\`aenv attach ${sandbox.sandboxID} ${pid}\` comes back to it` } : {};
  if (ending.kind === "detached" || ending.kind === "signal") {
    // The cursor may be in the middle of a line.
    if (canComeBack) {
      await context.out.note(
        `\nDetached; process ${pid} in ${sandbox.sandboxID} goes on.\n  aenv attach ${sandbox.sandboxID} ${pid}   back to it`,
      );
    }
    return ending.kind === "signal" ? ending.exitCode : EXIT.ok;
  }
  await context.out.note("");
  throw new CliError(EXIT.interrupted, whyLost(sandbox.sandboxID, ending), ending.kind === "lost" ? back : {});
}
