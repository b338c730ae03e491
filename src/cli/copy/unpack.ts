import { randomBytes } from "node:crypto";
import { constants } from "node:fs";
import { chmod, lstat, mkdir, open, rename, rm, symlink } from "node:fs/promises";
import { CliError, EXIT } from "../errors.ts";
import { join, parentOf, shown, toBytes } from "./names.ts";
import { type ReadEntry, readTar } from "./tar.ts";

/** Special bits are the sandbox's business, not ours: a copy must not run as somebody else here. */
const PERMISSION_BITS = 0o777;
/** Folders stay open to whoever copies, who could not fill or remove them otherwise. */
const OWNER_BITS = 0o700;

export interface Unpacking {
  onFile(): void;
  onBytes(count: number): void;
  /** A device, pipe or socket, which is left out. */
  onSkipped(path: string): void;
}

/**
 * Writes the entries of a tar into a folder (bytes) that exists. What it says is not trusted: nothing is written outside of
 * the folder, and no link is followed below it, neither one that was there nor one from the archive. A file or link
 * replaces a file or link as a whole, never a folder. `rename` gives an entry its name. Throws CliError; what was written
 * before stays.
 */
export async function unpackTree(
  from: AsyncIterable<Buffer>,
  folder: string,
  rename: (name: string) => string,
  on: Unpacking,
): Promise<void> {
  const into = new Folder(folder);
  for await (const entry of readTar(from)) {
    const name = rename(entry.name);
    const parts = partsOf(name);
    if (parts === undefined) {
      throw new CliError(EXIT.failure, `the sandbox named a place outside of the folder: ${shown(entry.name)}`);
    }
    if (entry.kind === "special") on.onSkipped(name);
    else if (parts.length > 0) await into.write(parts, entry, on);
  }
}

/** The parts of a name below a folder; undefined where it would lead out of it. */
function partsOf(name: string): string[] | undefined {
  if (name.startsWith("/") || name.includes("\0")) return undefined;
  const parts = name.split("/").filter((part) => part !== "" && part !== ".");
  return parts.includes("..") ? undefined : parts;
}

class Folder {
  readonly #root: string;
  /** Known to be reached by folders alone. */
  #checked = "";

  constructor(root: string) {
    this.#root = root;
  }

  async write(parts: readonly string[], entry: ReadEntry, on: Unpacking): Promise<void> {
    await this.#makeParents(parts.slice(0, -1));
    const path = join(this.#root, parts.join("/"));
    if (entry.kind === "folder") {
      await makeFolder(path, entry.mode);
      return;
    }
    on.onFile();
    if (entry.kind === "link") await writeLink(path, entry.target);
    else await writeFile(path, entry, on);
  }

  async #makeParents(parts: readonly string[]): Promise<void> {
    const folder = parts.join("/");
    if (folder === this.#checked) return;
    for (let count = 1; count <= parts.length; count += 1) {
      await makeFolder(join(this.#root, parts.slice(0, count).join("/")), 0o755);
    }
    this.#checked = folder;
  }
}

async function makeFolder(path: string, mode: number): Promise<void> {
  await writing(path, async () => {
    try {
      await mkdir(toBytes(path), OWNER_BITS);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
      if ((await lstat(toBytes(path))).isDirectory()) return;
      throw new CliError(EXIT.failure, `${shown(path)} is in the way: it is not a folder`);
    }
    await chmod(toBytes(path), (mode & PERMISSION_BITS) | OWNER_BITS);
  });
}

/** Writes content to a new file, which then gets its name; until then there is the old one, or none. */
export async function writeFile(
  path: string,
  entry: { readonly mode: number; readonly modifiedS?: number; readonly content: AsyncIterable<Buffer> },
  on: Pick<Unpacking, "onBytes">,
): Promise<void> {
  const temporary = temporaryFor(path);
  const flags = constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW;
  const file = await writing(path, () => open(toBytes(temporary), flags, 0o600));
  try {
    try {
      for await (const piece of entry.content) {
        await writing(path, () => file.writeFile(piece));
        on.onBytes(piece.length);
      }
      await writing(path, async () => {
        await file.chmod(entry.mode & PERMISSION_BITS);
        if (entry.modifiedS !== undefined) await file.utimes(entry.modifiedS, entry.modifiedS);
      });
    } finally {
      await file.close();
    }
    await put(temporary, path);
  } catch (error) {
    await rm(toBytes(temporary), { force: true });
    throw error;
  }
}

async function writeLink(path: string, target: string): Promise<void> {
  const temporary = temporaryFor(path);
  try {
    await writing(path, () => symlink(toBytes(target), toBytes(temporary)));
    await put(temporary, path);
  } catch (error) {
    await rm(toBytes(temporary), { force: true });
    throw error;
  }
}

async function put(temporary: string, path: string): Promise<void> {
  await writing(path, async () => {
    const there = await lstat(toBytes(path)).catch(() => undefined);
    if (there?.isDirectory()) {
      throw new CliError(EXIT.failure, `${shown(path)} is a folder, and a folder is not replaced`);
    }
    await rename(toBytes(temporary), toBytes(path));
  });
}

function temporaryFor(path: string): string {
  return join(parentOf(path), `.aenv-${randomBytes(8).toString("hex")}`);
}

async function writing<T>(path: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (error instanceof CliError) throw error;
    const { code, message } = error as NodeJS.ErrnoException;
    const why = { EACCES: "permission denied", ENOSPC: "no space left", ENOENT: "its folder is not there" }[code ?? ""];
    throw new CliError(EXIT.failure, `cannot write ${shown(path)}: ${why ?? message}`, { cause: error });
  }
}
