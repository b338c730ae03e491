import type { ListedSandbox } from "../api.ts";
import type { Command } from "../command.ts";
import { CliError, EXIT } from "../errors.ts";
import { type Column, formatBytes, formatDuration, formatTime } from "../output.ts";

const MIB = 1024 * 1024;

export const list: Command = {
  name: "list",
  aliases: ["ls"],
  summary: "list the sandboxes, newest first",
  args: [],
  options: [
    { flags: "-s, --state <state>", summary: "only these: running, paused", kind: "text" },
    { flags: "-m, --metadata <name=value>", summary: "only with this metadata; may be repeated", kind: "pairs" },
    { flags: "-q, --quiet", summary: "only the ids", kind: "flag" },
  ],
  examples: ["aenv ls", "aenv ls --state paused --json", "aenv rm $(aenv ls -q -m job=42)"],
  async run(context, input) {
    const states = parseStates(input.text("state"));
    const metadata = input.pairs("metadata");
    const api = await context.api();
    const found = await api.listSandboxes({ states, ...(metadata === undefined ? {} : { metadata }) });
    const quiet = input.flag("quiet") ? ({ sandboxID }: ListedSandbox) => sandboxID : undefined;
    await context.out.list(found, { json: context.json, quiet, columns: columns(Date.now()) });
    return EXIT.ok;
  },
};

function parseStates(text: string | undefined): string[] {
  const states = text === undefined ? [] : text.split(",").map((state) => state.trim());
  const wrong = states.find((state) => state !== "running" && state !== "paused");
  if (wrong === undefined) return states;
  throw new CliError(EXIT.usage, `--state '${wrong}' is no state`, {
    hint: "it is running, paused, or running,paused",
  });
}

function columns(nowMs: number): Column<ListedSandbox>[] {
  return [
    { title: "SANDBOX", value: (row) => row.sandboxID },
    { title: "TEMPLATE", value: (row) => row.alias ?? row.templateID },
    { title: "STATE", value: (row) => row.state },
    { title: "CPU", value: (row) => String(row.cpuCount), right: true },
    { title: "MEMORY", value: (row) => formatBytes(row.memoryMB * MIB), right: true },
    { title: "DISK", value: (row) => formatBytes(row.diskSizeMB * MIB), right: true },
    { title: "STARTED", value: (row) => formatTime(row.startedAt) },
    {
      title: "ENDS IN",
      value: (row) => {
        const at = row.state === "running" ? row.endAt : row.removeAt;
        return at === undefined ? "-" : formatDuration(Date.parse(at) - nowMs);
      },
      right: true,
    },
  ];
}
