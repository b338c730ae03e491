import { Semaphore } from "#lib/mutex";
import type { ApiClient, TemplateDetail } from "../api.ts";
import type { Command } from "../command.ts";
import { CliError, EXIT } from "../errors.ts";
import { buildForest, lineOf, type Origins, renderForest } from "../lineage.ts";
import { whileWaiting } from "../progress.ts";

const PARALLEL = 8;

export const tree: Command = {
  name: "tree",
  aliases: [],
  summary: "show what was started, forked and captured from what",
  args: [
    { name: "id", summary: "only what this sandbox, snapshot or template comes from and leads to", optional: true },
  ],
  options: [],
  examples: ["aenv tree", "aenv tree ID", "aenv tree ready:v2 --json"],
  details: `Below a template or snapshot stand the sandboxes started from it, below a sandbox its forks and what was captured
from it. What has gone in between is left out; its descendants then stand below what it came from.`,
  async run(context, input) {
    const api = await context.api();
    const forest = buildForest(await whileWaiting(context.io, "reading where all comes from", readOrigins(api)));
    const wanted = input.args[0];
    const shown = wanted === undefined ? forest : lineOf(forest, wanted);
    if (shown === undefined) {
      throw new CliError(EXIT.notFound, `there is no sandbox, snapshot or template in use '${wanted}'`, {
        hint: "`aenv tree` shows all",
      });
    }
    if (context.json) await context.out.json(shown);
    else if (shown.length > 0) await context.out.line(renderForest(shown));
    return EXIT.ok;
  },
};

async function readOrigins(api: ApiClient): Promise<Origins> {
  const [sandboxes, snapshots, templates] = await Promise.all([
    api.listSandboxes(),
    api.listSnapshots(),
    api.listTemplates(),
  ]);
  // Lists show one build of each.
  const gate = new Semaphore(PARALLEL);
  const many = [...snapshots, ...templates].filter(({ buildCount = 1 }) => buildCount > 1);
  const details = await Promise.all(many.map(({ templateID }) => gate.run(() => detailOf(api, templateID))));
  return { sandboxes, snapshots, templates, details: details.filter((detail) => detail !== undefined) };
}

/** undefined: it was deleted meanwhile. */
async function detailOf(api: ApiClient, id: string): Promise<TemplateDetail | undefined> {
  try {
    return await api.getTemplate(id);
  } catch (error) {
    if (error instanceof CliError && error.exitCode === EXIT.notFound) return undefined;
    throw error;
  }
}
