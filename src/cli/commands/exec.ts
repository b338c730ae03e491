import type { Command } from "../command.ts";
import { EXIT } from "../errors.ts";
import { EXECUTION_OPTIONS, execute, parseExecution } from "../execution.ts";
import { runningSandbox } from "../sandbox.ts";

/** While somebody types into a command its sandbox is prolonged to this. */
const ATTENDED_S = 120;

export const exec: Command = {
  name: "exec",
  aliases: [],
  summary: "run a command in a running sandbox",
  args: [
    { name: "id", summary: "sandbox" },
    { name: "command", summary: "the command and its arguments, as they are; no shell takes them apart", many: true },
  ],
  options: EXECUTION_OPTIONS,
  passThrough: true,
  failureCode: EXIT.execFailed,
  examples: [
    "aenv exec ID ls -la /etc",
    "aenv exec ID sh -c 'echo $HOME | wc -c'",
    "aenv exec -it ID python3",
    "tar c src | aenv exec --cwd /tmp ID tar x",
    "aenv exec ID cat /usr/bin/env > copy",
  ],
  details: `Options of aenv come before the id; every word after it belongs to the command. Piped standard input is handed on
byte for byte; a terminal's only with -i. -it puts your terminal on the command: Ctrl-P Ctrl-Q, or Enter ~ . leaves it
running, and \`aenv attach\` comes back to it. Without -it Ctrl-C asks the command to end, a second one kills it.
The exit code is the command's own, 128+n when signal n ended it, 125 when aenv itself failed.`,
  async run(context, input) {
    const [id = "", ...words] = input.args;
    const execution = parseExecution(context, input, words, "exec");
    const api = await context.api();
    const sandbox = await runningSandbox(api, id);
    return await execute(context, api, sandbox, execution, { timeoutS: ATTENDED_S, canComeBack: true });
  },
};
