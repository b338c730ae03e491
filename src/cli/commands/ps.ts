import type { Command } from "../command.ts";
import { EXIT } from "../errors.ts";
import { type Column, quoteWords } from "../output.ts";
import { runningSandbox } from "../sandbox.ts";

export const ps: Command = {
  name: "ps",
  aliases: [],
  summary: "list the processes that can be attached to",
  args: [{ name: "id", summary: "sandbox" }],
  options: [],
  examples: ["aenv ps ID", "aenv attach ID PID"],
  details: `Those that were started from outside, by \`aenv\` or an SDK, and still run; \`aenv exec ID ps aux\` shows the others too.
The tag aenv-shell marks the shell of \`aenv start\` and \`aenv cn\`.`,
  async run(context, input) {
    const { ProcessClient } = await import("../envd.ts");
    const api = await context.api();
    const sandbox = await runningSandbox(api, input.arg(0));
    const found = await new ProcessClient(api.http, sandbox).list();
    await context.out.list(found, { json: context.json, columns: COLUMNS });
    return EXIT.ok;
  },
};

interface Row {
  readonly pid: number;
  readonly tag?: string;
  readonly config: { readonly cmd: string; readonly args: readonly string[] };
}

const COLUMNS: readonly Column<Row>[] = [
  { title: "PID", value: (row) => String(row.pid), right: true },
  { title: "TAG", value: (row) => row.tag ?? "-" },
  { title: "COMMAND", value: ({ config }) => quoteWords([config.cmd, ...config.args]) },
];
