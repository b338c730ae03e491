import type { ApiClient } from "../api.ts";
import type { Command } from "../command.ts";
import type { Context } from "../context.ts";
import { ApiError, CliError, EXIT } from "../errors.ts";
import { EXECUTION_OPTIONS, execute, parseExecution } from "../execution.ts";
import { onEnding } from "../io.ts";
import { keepAlive } from "../keepalive.ts";
import { DEFAULT_TIMEOUT_S } from "../options.ts";
import { whileWaiting } from "../progress.ts";
import { createUninterrupted } from "../sandbox.ts";

export const run: Command = {
  name: "run",
  aliases: [],
  summary: "run one command in a sandbox of its own, which ends with it",
  args: [
    { name: "template", summary: "template name, name:tag, or id" },
    { name: "command", summary: "the command and its arguments, as they are; no shell takes them apart", many: true },
  ],
  options: EXECUTION_OPTIONS,
  passThrough: true,
  failureCode: EXIT.execFailed,
  examples: [
    "aenv run base -- python3 -c 'print(6 * 7)'",
    "aenv run -it base -- bash",
    "aenv run -i -e LANG=C.UTF-8 base -- python3 < script.py > result.txt",
  ],
  details: `Starts a sandbox, runs the command in it as \`aenv exec\` does, and deletes the sandbox, whatever happens: also after
Ctrl-C and when the command could not be started. The sandbox lives as long as the command; should aenv itself be killed,
it ends ${DEFAULT_TIMEOUT_S} seconds later. With -it Enter ~ . leaves, which ends the sandbox too.
The exit code is the command's own, 128+n when signal n ended it, 125 when aenv itself failed.`,
  async run(context, input) {
    const [templateID = "", ...words] = input.args;
    const execution = parseExecution(context, input, words, "run");
    const api = await context.api();
    using held = new HeldSignals(context);
    const sandbox = await createUninterrupted(context, api, { templateID, timeout: DEFAULT_TIMEOUT_S });
    const ended = new AbortController();
    const alive = keepAlive(api, sandbox.sandboxID, DEFAULT_TIMEOUT_S, ended.signal);
    try {
      held.throwIfAny();
      return await execute(context, api, sandbox, execution, { canComeBack: false });
    } finally {
      ended.abort();
      await alive;
      await remove(context, api, sandbox.sandboxID);
    }
  },
};

/** From here on no signal ends us before the sandbox is deleted; whoever has to act on one listens besides. */
class HeldSignals implements Disposable {
  readonly #forget: () => void;
  #any = false;

  constructor({ io }: Context) {
    this.#forget = onEnding(io, () => {
      this.#any = true;
    });
  }

  throwIfAny(): void {
    if (this.#any) throw new CliError(EXIT.interrupted, "interrupted");
  }

  [Symbol.dispose](): void {
    this.#forget();
  }
}

/** Never throws: how the command ended is what the person has to know. A signal meanwhile gives up waiting. */
async function remove({ io, out }: Context, api: ApiClient, id: string): Promise<void> {
  const giveUp = new AbortController();
  const interrupted = new CliError(EXIT.interrupted, "interrupted");
  const forget = onEnding(io, () => giveUp.abort(interrupted));
  try {
    await whileWaiting(io, `deleting ${id}`, api.deleteSandbox(id, giveUp.signal));
  } catch (error) {
    // Its time was over, or somebody else was faster.
    if (error instanceof ApiError && error.status === 404) return;
    const why = error instanceof Error ? error.message : String(error);
    await out.note(
      `aenv: could not delete ${id}: ${why}\nhint: \`aenv rm ${id}\` does; it ends by itself in ${DEFAULT_TIMEOUT_S} s`,
    );
  } finally {
    forget();
  }
}
