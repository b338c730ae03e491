import { constants } from "node:fs";
import { type FileHandle, lstat, open, readdir, readlink } from "node:fs/promises";
import { CliError, EXIT } from "../errors.ts";
import { shown, toBytes } from "./names.ts";
import { TAR_END, type TarEntry, tarHeader, tarPadding } from "./tar.ts";

const PIECE_BYTES = 1 << 20;
const GATHERED_BYTES = 256 * 1024;
/** Most are empty indeed. */
const UNSIZED_PIECE_BYTES = 4096;
const UNSIZED_MAX_BYTES = 64 << 20;

export interface Packing {
  /** Called for each file and link, and as content goes out. */
  onFile(): void;
  onBytes(count: number): void;
  /** A device, pipe or socket, which is left out. */
  onSkipped(path: string): void;
}

/**
 * A tar of what lies at `path` (bytes), which it calls `name`; "." is the folder that it is unpacked into. Links are packed as
 * links. Throws CliError for what cannot be read, and for a file that gets shorter meanwhile.
 */
export async function* packTree(path: string, name: string, on: Packing): AsyncGenerator<Buffer, void> {
  let small: Buffer[] = [];
  let smallBytes = 0;
  // Each piece is a write of its own on the way out; those of many small files go together.
  for await (const piece of packOne(path, name, on)) {
    small.push(piece);
    smallBytes += piece.length;
    if (smallBytes < GATHERED_BYTES) continue;
    yield small.length === 1 ? piece : Buffer.concat(small);
    small = [];
    smallBytes = 0;
  }
  yield Buffer.concat([...small, TAR_END]);
}

async function* packOne(path: string, name: string, on: Packing): AsyncGenerator<Buffer, void> {
  const info = await reading(path, lstat(toBytes(path)));
  const entry = { name, mode: info.mode & 0o7777, modifiedS: Math.floor(info.mtimeMs / 1000), size: 0, target: "" };
  if (info.isFile()) return yield* packFile(path, entry, on);
  if (info.isSymbolicLink()) {
    const target = (await reading(path, readlink(toBytes(path), { encoding: "buffer" }))).toString("latin1");
    on.onFile();
    yield tarHeader({ ...entry, kind: "link", target });
  } else if (info.isDirectory()) {
    yield tarHeader({ ...entry, name: `${name}/`, kind: "folder" });
    const names = (await reading(path, readdir(toBytes(path), { encoding: "buffer" }))).map((each) =>
      each.toString("latin1"),
    );
    for (const each of names.sort()) yield* packOne(`${path}/${each}`, `${name}/${each}`, on);
  } else on.onSkipped(path);
}

async function* packFile(path: string, entry: Omit<TarEntry, "kind">, on: Packing): AsyncGenerator<Buffer, void> {
  // What was a file a moment ago may be a link, or a pipe that would wait for its writer.
  const flags = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK;
  const file = await reading(path, open(toBytes(path), flags));
  try {
    const { size } = await reading(path, file.stat());
    on.onFile();
    if (size === 0) return yield* packUnsized(path, file, entry, on);
    yield tarHeader({ ...entry, kind: "file", size });
    for (let at = 0; at < size; ) {
      const piece = Buffer.allocUnsafe(Math.min(PIECE_BYTES, size - at));
      const { bytesRead } = await reading(path, file.read(piece, 0, piece.length, at));
      if (bytesRead === 0) throw new CliError(EXIT.failure, `${shown(path)} became shorter while it was read`);
      at += bytesRead;
      on.onBytes(bytesRead);
      yield piece.subarray(0, bytesRead);
    }
    yield tarPadding(size);
  } finally {
    await file.close();
  }
}

/** Files of /proc and the like say that they are empty, whatever is in them. */
async function* packUnsized(
  path: string,
  file: FileHandle,
  entry: Omit<TarEntry, "kind">,
  on: Packing,
): AsyncGenerator<Buffer, void> {
  const pieces: Buffer[] = [];
  const piece = Buffer.allocUnsafe(UNSIZED_PIECE_BYTES);
  let size = 0;
  for (;;) {
    const bytesRead = await reading(path, readMore(file, piece));
    if (bytesRead === 0) break;
    size += bytesRead;
    if (size > UNSIZED_MAX_BYTES) {
      throw new CliError(EXIT.failure, `${shown(path)} does not say how large it is, and is larger than 64 MiB`, {
        hint: `hand it over as a stream: aenv cp - ID:FILE < ${shown(path)}`,
      });
    }
    on.onBytes(bytesRead);
    pieces.push(Buffer.from(piece.subarray(0, bytesRead)));
  }
  yield tarHeader({ ...entry, kind: "file", size });
  yield* pieces;
  yield tarPadding(size);
}

/** 0: there is no more, or not now: the kernel's logs have no end. */
async function readMore(file: FileHandle, into: Buffer): Promise<number> {
  try {
    return (await file.read(into)).bytesRead;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "EAGAIN") return 0;
    throw error;
  }
}

/** What went wrong here is not to be taken for a failure of the connection. */
async function reading<T>(path: string, work: Promise<T>): Promise<T> {
  try {
    return await work;
  } catch (error) {
    throw cannotRead(path, error);
  }
}

export function cannotRead(path: string, error: unknown): CliError {
  const { code, message } = error as NodeJS.ErrnoException;
  if (code === "ENOENT") return new CliError(EXIT.notFound, `there is no ${shown(path)} here`);
  const why = code === "EACCES" ? "permission denied" : message;
  return new CliError(EXIT.failure, `cannot read ${shown(path)}: ${why}`, { cause: error });
}
