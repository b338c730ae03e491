import type { Command } from "../command.ts";
import { DEFAULT_TIMEOUT_S, timeoutOption } from "../options.ts";
import { whileWaiting } from "../progress.ts";

export const connect: Command = {
  name: "connect",
  aliases: ["cn"],
  summary: "enter a sandbox's shell; resumes it when it is paused",
  args: [{ name: "id", summary: "sandbox" }],
  options: [timeoutOption(`how long it lives after you leave (default: ${DEFAULT_TIMEOUT_S}); never shortened`)],
  examples: ["aenv cn ID"],
  details: `Comes back to the shell that is there, with all that runs in it; starts one when there is none.
Ctrl-P Ctrl-Q, or Enter ~ . (Enter, then a tilde, then a dot), leaves and lets the shell go on, as does closing
the terminal; Enter ~ ~ types a tilde. While you are in, the sandbox's time is prolonged every minute.
The exit code is the shell's own; 130 when the sandbox was paused or went away.`,
  async run(context, input) {
    const { enter, requireTerminal } = await import("../shell/enter.ts");
    const id = input.arg(0);
    requireTerminal(context.io, `run single commands with \`aenv exec ${id} COMMAND\``);
    const timeoutS = input.number("timeout") ?? DEFAULT_TIMEOUT_S;
    const api = await context.api();
    const connecting = api.connectSandbox(id, timeoutS);
    const { sandbox, resumed } = await whileWaiting(context.io, `getting ${id} ready`, connecting);
    if (resumed) await context.out.note(`Resumed ${id}.`);
    return await enter(context, api, sandbox, { timeoutS });
  },
};
