import type { Command } from "../command.ts";
import { ApiError, EXIT } from "../errors.ts";
import { timeoutOption } from "../options.ts";
import { whileWaiting } from "../progress.ts";

export const fork: Command = {
  name: "fork",
  aliases: [],
  summary: "make copies of a running sandbox as it is now; it goes on running",
  args: [{ name: "id", summary: "sandbox" }],
  options: [
    { flags: "-c, --count <number>", summary: "how many copies (default: 1)", kind: "number", min: 1, max: 100 },
    timeoutOption("how long the copies live (default: as the source)"),
  ],
  examples: ["aenv fork ID", "aenv fork ID --count 8", "aenv cn $(aenv fork ID)"],
  details: "Prints the ids of the copies, one a line.",
  async run(context, input) {
    const api = await context.api();
    const forking = api.forkSandbox(input.arg(0), input.number("count") ?? 1, input.number("timeout"));
    const outcomes = await whileWaiting(context.io, `forking ${input.arg(0)}`, forking);
    if (context.json) await context.out.json(outcomes);
    let failed: ApiError | undefined;
    for (const { sandbox, error } of outcomes) {
      if (sandbox !== undefined && !context.json) await context.out.line(sandbox.sandboxID);
      if (error === undefined) continue;
      failed ??= new ApiError(error.code, error.message);
      await context.out.note(`aenv: a copy failed: ${error.message}`);
    }
    return failed?.exitCode ?? EXIT.ok;
  },
};
