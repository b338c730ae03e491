import type { Command } from "../command.ts";
import { CliError, EXIT } from "../errors.ts";

export const exec: Command = {
  name: "exec",
  aliases: [],
  summary: "run a command in a running sandbox",
  args: [
    { name: "id", summary: "sandbox" },
    { name: "command", summary: "the command and its arguments, as they are; no shell takes them apart", many: true },
  ],
  options: [
    { flags: "-e, --env <name=value>", summary: "environment variable; may be repeated", kind: "pairs" },
    { flags: "-w, --cwd <folder>", summary: "where to run it (default: the template's)", kind: "text" },
    { flags: "-u, --user <name>", summary: "who runs it (default: the template's)", kind: "text" },
    { flags: "-n, --null-input", summary: "give it empty standard input, as ssh -n", kind: "flag" },
  ],
  passThrough: true,
  failureCode: EXIT.execFailed,
  examples: [
    "aenv exec ID ls -la /etc",
    "aenv exec ID sh -c 'echo $HOME | wc -c'",
    "tar c src | aenv exec --cwd /tmp ID tar x",
    "aenv exec ID cat /usr/bin/env > copy",
  ],
  details: `Options of aenv come before the id; every word after it belongs to the command. Piped standard input is handed on
byte for byte; a terminal's is not (use \`aenv cn ID\` to type). Ctrl-C asks the command to end, a second one kills it.
The exit code is the command's own, 128+n when signal n ended it, 125 when aenv itself failed.`,
  async run(context, input) {
    const [id = "", ...words] = input.args;
    const [cmd, ...args] = words[0] === "--" ? words.slice(1) : words;
    if (cmd === undefined) throw new CliError(EXIT.usage, "missing command", { hint: "see `aenv exec --help`" });
    const api = await context.api();
    const sandbox = await api.getSandbox(id);
    if (sandbox.state === "paused") {
      throw new CliError(EXIT.conflict, `sandbox ${id} is paused`, { hint: `run \`aenv resume ${id}\` first` });
    }
    const [{ ProcessClient }, { runRemote }] = await Promise.all([import("../envd.ts"), import("../remote.ts")]);
    const envs = input.pairs("env");
    const cwd = input.text("cwd");
    return await runRemote(context.io, new ProcessClient(api.http, sandbox, input.text("user")), {
      cmd,
      args,
      ...(envs === undefined ? {} : { envs }),
      ...(cwd === undefined ? {} : { cwd }),
      stdin: context.io.stdin.isTTY !== true && !input.flag("nullInput"),
    });
  },
};
