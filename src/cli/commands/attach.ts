import type { Command } from "../command.ts";
import type { ProcessClient } from "../envd.ts";
import { CliError, EXIT, RpcError } from "../errors.ts";
import { runningSandbox } from "../sandbox.ts";

/** While somebody is attached the sandbox is prolonged to this. */
const ATTENDED_S = 120;

export const attach: Command = {
  name: "attach",
  aliases: [],
  summary: "come back to a running process",
  args: [
    { name: "id", summary: "sandbox" },
    {
      name: "pid",
      summary: "process, as `aenv ps ID` shows it (default: the shell, else the only one)",
      optional: true,
    },
  ],
  options: [],
  failureCode: EXIT.execFailed,
  examples: ["aenv ps ID", "aenv attach ID 1234", "aenv attach ID"],
  details: `Puts your terminal on a process that has one: Ctrl-P Ctrl-Q, or Enter ~ . leaves it running. Of any other process the
last of its output is shown and what follows; Ctrl-C leaves it running. The exit code is the process's own, 125 when aenv itself failed.`,
  async run(context, input) {
    const id = input.arg(0);
    const asked = parsePid(input.args[1]);
    const envd = await import("../envd.ts");
    const api = await context.api();
    const sandbox = await runningSandbox(api, id);
    const client = new envd.ProcessClient(api.http, sandbox);
    const pid = asked ?? (await onlyOne(client, id));
    const { stdin, stdout } = context.io;
    try {
      if (stdin.isTTY && stdout.isTTY && (await client.hasTerminal(pid, stdout))) {
        const [{ interact }, { running }] = await Promise.all([
          import("../shell/interact.ts"),
          import("../shell/program.ts"),
        ]);
        const options = { timeoutS: ATTENDED_S, canComeBack: true };
        return await interact(context, api, sandbox, running(pid), options);
      }
      const { watchRemote } = await import("../remote.ts");
      return await watchRemote(context.io, client, pid);
    } catch (error) {
      if (!(error instanceof RpcError && error.answered && error.code === "not_found")) throw error;
      throw new CliError(EXIT.execFailed, `there is no process ${pid} in ${id} to attach to`, {
        hint: `\`aenv ps ${id}\` shows those there are`,
        cause: error,
      });
    }
  },
};

function parsePid(text: string | undefined): number | undefined {
  if (text === undefined) return undefined;
  if (/^[1-9]\d{0,8}$/.test(text)) return Number(text);
  throw new CliError(EXIT.usage, `'${text}' is no process id`, { hint: "`aenv ps ID` shows them" });
}

async function onlyOne(client: ProcessClient, id: string): Promise<number> {
  const { SHELL_TAG } = await import("../shell/program.ts");
  const found = await client.list();
  const one = found.filter(({ tag }) => tag === SHELL_TAG).at(-1) ?? (found.length === 1 ? found[0] : undefined);
  if (one !== undefined) return one.pid;
  if (found.length === 0) {
    throw new CliError(EXIT.notFound, `nothing runs in ${id} that can be attached to`, {
      hint: `\`aenv cn ${id}\` starts a shell in it`,
    });
  }
  throw new CliError(EXIT.usage, `${found.length} processes run in ${id}`, {
    hint: `say which: \`aenv ps ${id}\` shows them`,
  });
}
