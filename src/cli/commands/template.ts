import type { Template } from "../api.ts";
import type { Command, CommandGroup } from "../command.ts";
import { EXIT } from "../errors.ts";
import { type Column, formatBytes, formatTime } from "../output.ts";

const MIB = 1024 * 1024;

const list: Command = {
  name: "list",
  aliases: ["ls"],
  summary: "list the templates sandboxes can be started from",
  args: [],
  options: [],
  examples: ["aenv template ls", "aenv template ls --json"],
  async run(context) {
    const found = await (await context.api()).listTemplates();
    await context.out.list(found, { json: context.json, columns: COLUMNS });
    return EXIT.ok;
  },
};

const remove: Command = {
  name: "delete",
  aliases: ["rm"],
  summary: "delete a template; running sandboxes keep what they need",
  args: [{ name: "template", summary: "name or id" }],
  options: [],
  examples: ["aenv template rm NAME"],
  async run(context, input) {
    const name = input.arg(0);
    await (await context.api()).deleteTemplate(name);
    if (context.json) await context.out.json({ template: name, result: "deleted" });
    else await context.out.line(`Deleted template ${name}.`);
    return EXIT.ok;
  },
};

export const template: CommandGroup = {
  name: "template",
  aliases: ["templates"],
  summary: "list or delete templates",
  commands: [list, remove],
};

const COLUMNS: readonly Column<Template>[] = [
  { title: "NAME", value: (row) => row.names?.[0] ?? row.aliases?.[0] ?? "-" },
  { title: "TEMPLATE", value: (row) => row.templateID },
  { title: "STATE", value: (row) => row.buildStatus ?? "-" },
  { title: "CPU", value: (row) => String(row.cpuCount), right: true },
  { title: "MEMORY", value: (row) => formatBytes(row.memoryMB * MIB), right: true },
  { title: "DISK", value: (row) => formatBytes(row.diskSizeMB * MIB), right: true },
  { title: "CREATED", value: (row) => formatTime(row.createdAt) },
];
