import type { Command } from "../command.ts";
import { EXIT } from "../errors.ts";
import { DEFAULT_TIMEOUT_S, timeoutOption } from "../options.ts";
import { whileWaiting } from "../progress.ts";

export const resume: Command = {
  name: "resume",
  aliases: [],
  summary: "resume a paused sandbox where it was",
  args: [{ name: "id", summary: "sandbox" }],
  options: [
    timeoutOption(`how long it runs from now on (default: ${DEFAULT_TIMEOUT_S}); one that runs is only prolonged`),
  ],
  examples: ["aenv resume ID", "aenv resume ID --timeout 3600"],
  async run(context, input) {
    const id = input.arg(0);
    const api = await context.api();
    const connecting = api.connectSandbox(id, input.number("timeout") ?? DEFAULT_TIMEOUT_S);
    const { sandbox, resumed } = await whileWaiting(context.io, `resuming ${id}`, connecting);
    if (context.json) await context.out.json(sandbox);
    else await context.out.line(resumed ? `Resumed ${id}.` : `${id} was running already.`);
    return EXIT.ok;
  },
};
