import { Semaphore } from "#lib/mutex";
import type { ApiClient } from "../api.ts";
import type { Command } from "../command.ts";
import { CliError, EXIT } from "../errors.ts";

const PARALLEL = 16;

/** Named `remove` because `delete` is a word of the language. */
export const remove: Command = {
  name: "delete",
  aliases: ["rm"],
  summary: "end sandboxes and remove all that is kept of them",
  args: [{ name: "id", summary: "sandboxes, running or paused", many: true }],
  options: [],
  examples: ["aenv rm ID", "aenv rm ID1 ID2 ID3", "aenv rm $(aenv ls -q --state paused)"],
  details: "All are tried; the exit code is that of the first one that failed.",
  async run(context, input) {
    const api = await context.api();
    const gate = new Semaphore(PARALLEL);
    const outcomes = await Promise.all(input.args.map((id) => gate.run(() => removeOne(api, id))));
    if (context.json) {
      await context.out.json(
        outcomes.map(({ error, ...rest }) => (error ? { ...rest, message: error.message } : rest)),
      );
    }
    for (const { sandboxID, error } of outcomes) {
      if (error !== undefined) await context.out.note(`aenv: ${sandboxID}: ${error.message}`);
      else if (!context.json) await context.out.line(`Deleted ${sandboxID}.`);
    }
    const failed = outcomes.find(({ error }) => error !== undefined)?.error;
    if (failed?.hint !== undefined) await context.out.note(`hint: ${failed.hint}`);
    return failed?.exitCode ?? EXIT.ok;
  },
};

interface Outcome {
  readonly sandboxID: string;
  readonly result: "deleted" | "failed";
  readonly error?: CliError;
}

async function removeOne(api: ApiClient, id: string): Promise<Outcome> {
  try {
    await api.deleteSandbox(id);
    return { sandboxID: id, result: "deleted" };
  } catch (error) {
    if (error instanceof CliError) return { sandboxID: id, result: "failed", error };
    throw error;
  }
}
