import type { ApiClient, Metric } from "../api.ts";
import type { Command } from "../command.ts";
import type { Context } from "../context.ts";
import { EXIT } from "../errors.ts";
import { followSandbox } from "../follow.ts";
import { formatBytes, formatTime, printable } from "../output.ts";

export const metrics: Command = {
  name: "metrics",
  aliases: [],
  summary: "show what a sandbox uses and used",
  args: [{ name: "id", summary: "sandbox, also one that has ended not long ago" }],
  options: [{ flags: "-f, --follow", summary: "go on with what is new, until the sandbox ends", kind: "flag" }],
  examples: ["aenv metrics ID", "aenv metrics -f ID", "aenv metrics ID --json | jq '.[-1].memUsed'"],
  details: `Oldest first; CPU is the share of all its processors, memory without what is only cache. --json prints an array; with
--follow one reading a line.`,
  async run(context, input) {
    const id = input.arg(0);
    const api = await context.api();
    const reader = new MetricReader(api, id);
    if (!input.flag("follow")) {
      const all = await reader.news();
      if (context.json) await context.out.json(all);
      else {
        await context.out.line(TITLES);
        await show(context, all);
        if (all.length === 0) await context.out.note(`There are no readings of ${id} yet.`);
      }
      return EXIT.ok;
    }
    let titled = context.json;
    return await followSandbox(context, api, id, async (signal) => {
      const fresh = await reader.news(signal);
      if (!titled) await context.out.line(TITLES, signal);
      titled = true;
      await show(context, fresh, signal);
    });
  },
};

/** Widths that fit every value: rows come one by one when they are followed. */
const WIDTHS = [19, 6, 20, 10, 20] as const;
const TITLES = row(["TIME", "CPU", "MEMORY", "CACHE", "DISK"]);

function row(cells: readonly string[]): string {
  return cells.map((cell, at) => (at === 0 ? cell.padEnd(WIDTHS[0]) : cell.padStart(WIDTHS[at] ?? 0))).join("  ");
}

async function show({ out, json }: Context, readings: readonly Metric[], signal?: AbortSignal): Promise<void> {
  if (readings.length === 0) return;
  if (json) await out.jsonLines(readings, signal);
  else await out.line(readings.map(lineOf).join("\n"), signal);
}

function lineOf(reading: Metric): string {
  const of = (used: number, total: number): string => `${formatBytes(used)} / ${formatBytes(total)}`;
  return printable(
    row([
      formatTime(reading.timestamp),
      `${reading.cpuUsedPct.toFixed(1)}%`,
      of(reading.memUsed, reading.memTotal),
      formatBytes(reading.memCache),
      of(reading.diskUsed, reading.diskTotal),
    ]),
  );
}

/** Reads onward. The server is asked by whole seconds, so the last reading's time is remembered. */
class MetricReader {
  readonly #api: ApiClient;
  readonly #id: string;
  #last: string | undefined;

  constructor(api: ApiClient, id: string) {
    this.#api = api;
    this.#id = id;
  }

  async news(signal?: AbortSignal): Promise<readonly Metric[]> {
    const last = this.#last;
    const lastMs = last === undefined ? undefined : Date.parse(last);
    const startS = lastMs === undefined ? undefined : Math.floor(lastMs / 1000);
    const found = await this.#api.sandboxMetrics(this.#id, startS, signal);
    const fresh = found.filter(({ timestamp }) => lastMs === undefined || Date.parse(timestamp) > lastMs);
    this.#last = fresh.at(-1)?.timestamp ?? last;
    return fresh;
  }
}
