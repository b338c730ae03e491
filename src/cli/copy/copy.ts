import { realpath, stat } from "node:fs/promises";
import { CliError, EXIT } from "../errors.ts";
import { type CliIo, writeAll } from "../io.ts";
import type { TransferDisplay } from "../progress.ts";
import { chunksOf } from "../streams.ts";
import type { RemoteFiles } from "./files.ts";
import { shown, toBytes } from "./names.ts";
import { cannotRead, packTree } from "./pack.ts";
import { type Existing, type Landing, landingOf, landingPath, type Place, type Source } from "./place.ts";
import { readSpecial, writeSpecial } from "./special.ts";
import { unpackTree, writeFile } from "./unpack.ts";

export interface Copying {
  readonly io: CliIo;
  readonly files: RemoteFiles;
  readonly display: TransferDisplay;
  readonly signal: AbortSignal;
  /** Told of each thing that is no file, and so is not copied. */
  onSkipped(path: string): void;
}

type Here = Exclude<Place, { kind: "sandbox" }>;

/** From this machine into the sandbox. */
export async function copyUp(copying: Copying, from: Here, to: string): Promise<void> {
  const { files } = copying;
  const source = from.kind === "stream" ? undefined : await localSource(from.path);
  const there = await files.stat(to);
  // A link that the target names is followed, as cp does.
  const target = there !== undefined && there.kind !== "folder" ? there.path : to;
  const kind = source?.kind === "folder" ? "folder" : "file";
  if (from.kind === "stream" && there?.kind === "folder") {
    throw new CliError(EXIT.usage, `${shown(to)} is a folder`, { hint: "name the file that standard input goes to" });
  }
  const typed = from.kind === "stream" ? "-" : from.path;
  const landing = landingOf({ kind, path: typed }, target, existing(there?.kind));
  await requireFolder(files, landing);
  const isStream = source === undefined || source.kind === "stream";
  // Devices and the like stay what they are: they are written to, not replaced.
  if (isStream || (source.kind === "file" && there?.kind === "other")) {
    const content =
      source === undefined ? chunksOf(copying.io.stdin, copying.signal) : readSpecial(source.path, copying.signal);
    copying.display.files = 1;
    return await files.write(landingPath(landing), counted(copying, content));
  }
  if (source.kind === "file") copying.display.totalBytes = source.size;
  await files.unpack(landing.folder, packTree(source.path, landing.name, packing(copying)));
}

async function requireFolder(files: RemoteFiles, { folder }: Landing): Promise<void> {
  const entry = await files.stat(folder);
  if (entry?.kind === "folder") return;
  throw new CliError(EXIT.notFound, `there is no folder ${shown(folder)} in the sandbox`, {
    hint: `make it first: aenv exec ${files.sandboxID} mkdir -p ${shown(folder)}`,
  });
}

/** Out of the sandbox to this machine. */
export async function copyDown(copying: Copying, from: string, to: Here): Promise<void> {
  const { files, io, display } = copying;
  const found = await files.stat(from);
  if (found === undefined) throw new CliError(EXIT.notFound, `there is no ${shown(from)} in the sandbox`);
  if (found.kind === "other") {
    throw new CliError(EXIT.usage, `${shown(from)} is neither a file nor a folder`, {
      hint: `a command can read it: aenv exec ${files.sandboxID} cat ${shown(from)}`,
    });
  }
  if (to.kind === "stream") {
    if (found.kind === "folder") {
      throw new CliError(EXIT.usage, `${shown(from)} is a folder, and standard output takes one file`, {
        hint: `for an archive of it: aenv exec ${files.sandboxID} tar c -C ${shown(from)} .`,
      });
    }
    display.files = 1;
    for await (const piece of counted(copying, await files.read(from)))
      await writeAll(io.stdout, piece, copying.signal);
    return;
  }
  const here = await localKind(to.path);
  const source: Source = { kind: found.kind, path: from };
  if (found.kind === "folder") return await folderDown(copying, found.path, landingOf(source, to.path, existing(here)));
  display.files = 1;
  display.totalBytes = found.size;
  if (here === "stream") {
    return await writeSpecial(to.path, counted(copying, await files.read(found.path)), copying.signal);
  }
  const landing = landingOf(source, to.path, existing(here));
  await requireLocalFolder(landing);
  // A link that the target itself names is followed; one that lies in a folder is replaced.
  const path = here === "file" ? await behindLinks(to.path) : landingPath(landing);
  const content = await files.read(found.path);
  await writeFile(path, { ...found, content }, packing(copying));
}

async function folderDown(copying: Copying, from: string, landing: Landing): Promise<void> {
  await requireLocalFolder(landing);
  const prefix = landing.name === "." ? "" : `${landing.name}/`;
  await unpackTree(await copying.files.pack(from), landing.folder, (name) => `${prefix}${name}`, packing(copying));
}

async function requireLocalFolder({ folder }: Landing): Promise<void> {
  if ((await localKind(folder)) === "folder") return;
  throw new CliError(EXIT.notFound, `there is no folder ${shown(folder)} here`, {
    hint: `make it first: mkdir -p ${shown(folder)}`,
  });
}

function packing({ display, onSkipped }: Copying) {
  return {
    onFile: () => {
      display.files += 1;
    },
    onBytes: (count: number) => {
      display.bytes += count;
    },
    onSkipped,
  };
}

async function* counted({ display }: Copying, content: AsyncIterable<Buffer>): AsyncGenerator<Buffer, void> {
  for await (const piece of content) {
    display.bytes += piece.length;
    yield piece;
  }
}

function existing(kind: "file" | "folder" | "other" | "stream" | undefined): Existing {
  return kind === undefined ? "nothing" : kind === "folder" ? "folder" : "file";
}

/** What a source of this machine is, behind links: pipes and devices are read like standard input. */
async function localSource(
  path: string,
): Promise<{ readonly kind: "file" | "folder" | "stream"; readonly path: string; readonly size: number }> {
  try {
    const info = await stat(toBytes(path));
    const stream = { kind: "stream", path, size: info.size } as const;
    if (!info.isFile() && !info.isDirectory()) return stream;
    // A file that has no name any more is reached by /dev/stdin and the like alone.
    const real = await behindLinks(path).catch(() => undefined);
    if (real === undefined) return stream;
    return { kind: info.isFile() ? "file" : "folder", path: real, size: info.size };
  } catch (error) {
    throw cannotRead(path, error);
  }
}

async function localKind(path: string): Promise<"file" | "folder" | "stream" | undefined> {
  try {
    // With a slash behind it a file would not be found.
    const info = await stat(toBytes(path.replace(/(?<=.)\/+$/, "")));
    return info.isDirectory() ? "folder" : info.isFile() ? "file" : "stream";
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === "ENOENT" || code === "ENOTDIR") return undefined;
    throw cannotRead(path, error);
  }
}

async function behindLinks(path: string): Promise<string> {
  return (await realpath(toBytes(path), { encoding: "buffer" })).toString("latin1");
}
