import type { Command } from "../command.ts";
import { CliError, EXIT } from "../errors.ts";
import { onEnding } from "../io.ts";
import { formatBytes } from "../output.ts";
import { runningSandbox } from "../sandbox.ts";

export const cp: Command = {
  name: "cp",
  aliases: [],
  summary: "copy files and folders into a sandbox, or out of it",
  args: [
    { name: "source", summary: "a path here, ID:PATH, or - for standard input" },
    { name: "target", summary: "ID:PATH, a path here, or - for standard output" },
  ],
  options: [
    {
      flags: "-u, --user <name>",
      summary: "who owns the copies in the sandbox, and whose home relative paths start at (default: the template's)",
      kind: "text",
    },
  ],
  examples: [
    "aenv cp notes.txt ID:                 into the home folder",
    "aenv cp src ID:/srv/app               becomes /srv/app; where that folder is there, /srv/app/src",
    "aenv cp src/. ID:/srv/app             what src holds, into the folder /srv/app",
    "aenv cp ID:results ./results",
    "aenv cp ID:/var/log/app.log - | less",
    "pg_dump shop | aenv cp - ID:/tmp/shop.sql",
  ],
  details: `Targets work as with docker cp: a folder that is there gets the copy below its own name (SOURCE/. puts in what the
source holds), anything else is replaced or made; folders above the target have to be there. Modes and times are kept; the
owner is --user in the sandbox and you here. Links inside folders are copied as links, and none in the target is
followed; devices, pipes and sockets are left out. A local path with a colon is written ./a:b.`,
  async run(context, input) {
    const [{ parsePlace }, { copyDown, copyUp }, { RemoteFiles }, { TransferDisplay }, { shown }] = await Promise.all([
      import("../copy/place.ts"),
      import("../copy/copy.ts"),
      import("../copy/files.ts"),
      import("../progress.ts"),
      import("../copy/names.ts"),
    ]);
    const [from, to] = [parsePlace(input.arg(0)), parsePlace(input.arg(1))];
    const remote = from.kind === "sandbox" ? from : to;
    if (remote.kind !== "sandbox" || (from.kind === "sandbox" && to.kind === "sandbox")) {
      throw new CliError(EXIT.usage, "exactly one of source and target has to be in a sandbox", {
        hint: "written ID:PATH, for example: aenv cp notes.txt ID:/tmp/",
      });
    }
    const interrupted = new CliError(EXIT.interrupted, "interrupted; what was copied before is kept");
    const stop = new AbortController();
    const forget = onEnding(context.io, () => stop.abort(interrupted));
    const skipped: string[] = [];
    let left = 0;
    const onSkipped = (path: string): void => {
      left += 1;
      if (skipped.length < SHOWN_SKIPPED) skipped.push(shown(path));
    };
    try {
      const api = await context.api();
      const sandbox = await runningSandbox(api, remote.id, stop.signal);
      const files = new RemoteFiles(api.http, sandbox, input.text("user"), stop.signal);
      await using display = new TransferDisplay(context.io, "copying");
      const copying = { io: context.io, files, display, signal: stop.signal, onSkipped };
      if (from.kind === "sandbox" && to.kind !== "sandbox") await copyDown(copying, from.path, to);
      else if (from.kind !== "sandbox") await copyUp(copying, from, remote.path);
      await display[Symbol.asyncDispose]();
      for (const path of skipped) await context.out.note(`left out ${path}: it is no file, folder or link`);
      if (left > skipped.length) await context.out.note(`left out ${left - skipped.length} more`);
      if (to.kind === "stream") return EXIT.ok;
      const { files: count, bytes } = display;
      if (context.json) await context.out.json({ files: count, bytes, leftOut: left });
      else {
        await context.out.note(
          `Copied ${count} ${count === 1 ? "file" : "files"} (${formatBytes(bytes)}) to ${input.arg(1)}`,
        );
      }
      return EXIT.ok;
    } finally {
      forget();
      stop.abort(interrupted);
    }
  },
};

const SHOWN_SKIPPED = 20;
