import type { Command } from "../command.ts";
import { EXIT } from "../errors.ts";
import { whileWaiting } from "../progress.ts";

export const pause: Command = {
  name: "pause",
  aliases: [],
  summary: "pause a sandbox: its processes, memory and files are kept on disk",
  args: [{ name: "id", summary: "sandbox" }],
  options: [],
  examples: ["aenv pause ID", "aenv resume ID"],
  async run(context, input) {
    const id = input.arg(0);
    const api = await context.api();
    const paused = await whileWaiting(context.io, `pausing ${id}`, api.pauseSandbox(id));
    if (context.json) await context.out.json({ sandboxID: id, result: paused ? "paused" : "already_paused" });
    else await context.out.line(paused ? `Paused ${id}.` : `${id} was paused already.`);
    return EXIT.ok;
  },
};
