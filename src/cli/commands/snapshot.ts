import type { Command } from "../command.ts";
import { EXIT } from "../errors.ts";
import { whileWaiting } from "../progress.ts";

export const snapshot: Command = {
  name: "snapshot",
  aliases: [],
  summary: "capture a running sandbox as what others can be started from; it goes on running",
  args: [{ name: "id", summary: "sandbox" }],
  options: [
    {
      flags: "-n, --name <name[:tag]>",
      summary: "name and tag (default tag: default); what had them is replaced",
      kind: "text",
    },
    { flags: "--filesystem", summary: "only its files: what is started from it is booted", kind: "flag" },
  ],
  examples: [
    "aenv snapshot ID",
    "aenv snapshot ID --name ready",
    "aenv snapshot ID --name ready:v2 && aenv start ready:v2",
    "aenv start $(aenv snapshot ID)",
  ],
  details: `Prints what \`aenv start\` takes: name and tag, or without --name an id of its own. Sandboxes started from it go on with
the processes, memory and files of that moment, under an identity of their own; with --filesystem they have the files
and are booted with the template's start command.`,
  async run(context, input) {
    const id = input.arg(0);
    const api = await context.api();
    const name = input.text("name");
    const request = { ...(name !== undefined && { name }), ...(input.flag("filesystem") && { memory: false }) };
    const made = await whileWaiting(context.io, `capturing ${id}`, api.createSnapshot(id, request));
    if (context.json) await context.out.json(made);
    else await context.out.line(made.snapshotID);
    return EXIT.ok;
  },
};
