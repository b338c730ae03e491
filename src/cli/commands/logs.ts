import type { ApiClient, LogEntry } from "../api.ts";
import type { Command } from "../command.ts";
import type { Context } from "../context.ts";
import { EXIT } from "../errors.ts";
import { followSandbox } from "../follow.ts";
import { formatTime, printableLines } from "../output.ts";

const PAGE = 1000;

export const logs: Command = {
  name: "logs",
  aliases: [],
  summary: "show what happened in a sandbox, oldest first",
  args: [{ name: "id", summary: "sandbox, also one that has ended not long ago" }],
  options: [{ flags: "-f, --follow", summary: "go on with what is new, until the sandbox ends", kind: "flag" }],
  examples: ["aenv logs ID", "aenv logs -f ID", "aenv logs ID --json | jq -r '.[].message'"],
  details: `--follow goes on through pauses of the sandbox and restarts of the server. --json prints an array; with --follow one
entry a line. What a command prints is its own: \`aenv exec\` and \`aenv attach\` show it.`,
  async run(context, input) {
    const id = input.arg(0);
    const api = await context.api();
    const reader = new LogReader(api, id);
    if (input.flag("follow")) {
      return await followSandbox(context, api, id, async (signal) => {
        for await (const page of reader.news(signal)) await show(context, page, signal);
      });
    }
    const all: LogEntry[] = [];
    for await (const page of reader.news()) {
      if (context.json) all.push(...page);
      else await show(context, page);
    }
    if (context.json) await context.out.json(all);
    return EXIT.ok;
  },
};

async function show({ out, json }: Context, entries: readonly LogEntry[], signal?: AbortSignal): Promise<void> {
  if (entries.length === 0) return;
  if (json) await out.jsonLines(entries, signal);
  else await out.line(entries.map(lineOf).join("\n"), signal);
}

function lineOf({ timestamp, level, message, fields }: LogEntry): string {
  const more = Object.entries(fields ?? {}).map(([name, value]) => `  ${name}=${value}`);
  const fraction = /\.(\d{3})/.exec(timestamp)?.[1] ?? "000";
  return `${formatTime(timestamp)}.${fraction}  ${level.padEnd(5)}  ${printableLines(`${message}${more.join("")}`)}`;
}

/** Reads a log onward. The server can be asked for a millisecond on, so what was shown of the last one is remembered. */
class LogReader {
  readonly #api: ApiClient;
  readonly #id: string;
  #cursorMs: number | undefined;
  #shown = new Set<string>();

  constructor(api: ApiClient, id: string) {
    this.#api = api;
    this.#id = id;
  }

  /** Page by page what there is now and was not there before. */
  async *news(signal?: AbortSignal): AsyncGenerator<readonly LogEntry[], void> {
    for (;;) {
      const page = await this.#api.sandboxLogs(this.#id, { cursorMs: this.#cursorMs, limit: PAGE }, signal);
      const fresh = page.filter((entry) => !this.#shown.has(JSON.stringify(entry)));
      const lastMs = Math.max(...page.map(({ timestamp }) => Date.parse(timestamp)), this.#cursorMs ?? 0);
      // A millisecond that fills pages by itself is left behind, or there would be no end of it.
      const stuck = fresh.length === 0 && page.length === PAGE;
      this.#cursorMs = page.length === 0 ? this.#cursorMs : stuck ? lastMs + 1 : lastMs;
      this.#shown = new Set(
        page.filter(({ timestamp }) => Date.parse(timestamp) === lastMs).map((entry) => JSON.stringify(entry)),
      );
      if (fresh.length > 0) yield fresh;
      if (page.length < PAGE) return;
    }
  }
}
