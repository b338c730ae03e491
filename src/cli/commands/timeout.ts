import type { Command } from "../command.ts";
import { CliError, EXIT } from "../errors.ts";
import { formatTime } from "../output.ts";

export const timeout: Command = {
  name: "timeout",
  aliases: [],
  summary: "set how long a running sandbox lives from now on",
  args: [
    { name: "id", summary: "sandbox" },
    { name: "seconds", summary: "from now; may shorten; 0 ends it now" },
  ],
  options: [],
  examples: ["aenv timeout ID 3600", "aenv timeout ID 0"],
  async run(context, input) {
    const id = input.arg(0);
    const seconds = parseSeconds(input.arg(1));
    await (await context.api()).setTimeout(id, seconds);
    const endAt = new Date(Date.now() + seconds * 1000);
    if (context.json) await context.out.json({ sandboxID: id, timeout: seconds, endAt: endAt.toISOString() });
    else await context.out.line(seconds === 0 ? `${id} ends now.` : `${id} ends at ${formatTime(endAt)}.`);
    return EXIT.ok;
  },
};

function parseSeconds(text: string): number {
  if (/^\d{1,9}$/.test(text)) return Number(text);
  throw new CliError(EXIT.usage, `'${text}' is no number of seconds`, { hint: "for example: aenv timeout ID 600" });
}
