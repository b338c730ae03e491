import type { SnapshotInfo } from "../api.ts";
import type { Command, CommandGroup } from "../command.ts";
import { CliError, EXIT } from "../errors.ts";
import { type Column, formatBytes, formatTime } from "../output.ts";

const list: Command = {
  name: "list",
  aliases: ["ls"],
  summary: "list the captured sandboxes, newest first",
  args: [],
  options: [
    { flags: "-s, --sandbox <id>", summary: "only those captured from this sandbox", kind: "text" },
    { flags: "-n, --name <name[:tag]>", summary: "only this name or id", kind: "text" },
    { flags: "-q, --quiet", summary: "only what `aenv start` takes", kind: "flag" },
  ],
  examples: ["aenv snapshots ls", "aenv snapshots ls --sandbox ID --json", "aenv snapshots rm $(aenv snapshots ls -q)"],
  async run(context, input) {
    const [sandboxID, name] = [input.text("sandbox"), input.text("name")];
    const filter = { ...(sandboxID !== undefined && { sandboxID }), ...(name !== undefined && { name }) };
    const found = await (await context.api()).listSnapshots(filter);
    const quiet = input.flag("quiet") ? ({ snapshotID }: SnapshotInfo) => snapshotID : undefined;
    await context.out.list(found, { json: context.json, quiet, columns: COLUMNS });
    return EXIT.ok;
  },
};

const remove: Command = {
  name: "delete",
  aliases: ["rm"],
  summary: "delete snapshots that no sandbox was started from",
  args: [{ name: "snapshot", summary: "as `aenv snapshots ls` shows it, or a name for all its tags", many: true }],
  options: [],
  examples: ["aenv snapshots rm ready:v1", "aenv snapshots rm ready"],
  details: "One after another, up to the first that cannot be deleted. What was captured from their sandboxes stays.",
  async run(context, input) {
    const api = await context.api();
    for (const snapshot of input.args) {
      // By the same route the server deletes templates.
      if ((await api.listSnapshots({ name: snapshot })).length === 0) {
        throw new CliError(EXIT.notFound, `there is no snapshot '${snapshot}'`, {
          hint: "`aenv snapshots ls` shows the snapshots there are, `aenv template rm` deletes templates",
        });
      }
      await api.deleteTemplate(snapshot);
      if (!context.json) await context.out.line(`Deleted snapshot ${snapshot}.`);
    }
    if (context.json) await context.out.json(input.args.map((snapshot) => ({ snapshot, result: "deleted" })));
    return EXIT.ok;
  },
};

export const snapshots: CommandGroup = {
  name: "snapshots",
  aliases: [],
  summary: "list or delete snapshots",
  commands: [list, remove],
};

const COLUMNS: readonly Column<SnapshotInfo>[] = [
  { title: "SNAPSHOT", value: (row) => row.snapshotID },
  { title: "CAPTURED FROM", value: (row) => row.lineage.sandboxID ?? "-" },
  { title: "SIZE", value: (row) => formatBytes(row.sizeBytes), right: true },
  { title: "CREATED", value: (row) => formatTime(row.createdAt) },
];
