import { renameSync } from "node:fs";
import { chmod, link, mkdir, open, readdir, rename, rm, stat, truncate, utimes, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { ByteRange, DiskFiles } from "#lib/disk-files";
import { ignoreMissing, isMissing } from "#lib/files";
import { Flights } from "#lib/flights";
import { Semaphore } from "#lib/mutex";
import { together } from "#lib/together";
import { newName } from "./names.ts";

/** Longest chain of a checkpoint's memory. */
export const MAX_LAYERS = 5;
const READABLE_BY_ALL = 0o444;
/** Assembled memories that no machine uses and that stay all the same. */
const KEPT_UNUSED = 2;

/**
 * The guest's memory on disk: layers, each a sparse file of the memory's size, that hold what was written since the one
 * before; the first is complete. Layers never change, so chains share them by hard links. A machine maps one file. Where files
 * can share blocks a snapshot is written over a copy of the memory before, so every chain has one layer; elsewhere a chain is
 * assembled into one file when a machine is first restored from it, for all its clones together.
 */
export class MemoryLayers {
  readonly #files: DiskFiles;
  readonly #assembledDir: string;
  readonly #sharesBlocks: boolean;
  readonly #assembling = new Flights();
  readonly #shortening = new Semaphore(1);
  #hasAssembled = false;
  /** By assembled file: how many are about to link it. */
  readonly #linking = new Map<string, number>();

  private constructor(files: DiskFiles, assembledDir: string, sharesBlocks: boolean) {
    this.#files = files;
    this.#assembledDir = assembledDir;
    this.#sharesBlocks = sharesBlocks;
  }

  /** `dir`: for assembled memories, on the file system that all layers are on. */
  static async open(files: DiskFiles, dir: string): Promise<MemoryLayers> {
    // What an earlier server assembled may be hollow: it was never synced, and its name would outlive a power cut. Machines that
    // run have links of their own.
    await rm(dir, { recursive: true, force: true });
    await mkdir(dir, { mode: 0o700 });
    return new MemoryLayers(files, dir, await sharesBlocks(files, dir));
  }

  /**
   * Makes ready for a snapshot that adds to a chain: in `dir`, what comes before it, and the file it is to be written into,
   * whose name is returned. Where blocks are shared that file is a copy of all memory, which the snapshot brings up to date;
   * elsewhere it is empty, and the chain's files are linked.
   */
  async begin(chain: Chain, dir: string): Promise<string> {
    const added = layerName();
    const path = join(dir, added);
    const copied = this.#toCopy(chain);
    if (copied === undefined) {
      const links = chain.layers.map((name) => link(join(chain.dir, name), join(dir, name)));
      await together([...links, writeFile(path, "", { flag: "wx", mode: 0o600 })]);
    } else {
      await this.#files.copy(copied, path);
    }
    return added;
  }

  /** Where the memory differs from that of `chain`, when the snapshot has been written into what `begin` has made. */
  written(chain: Chain, dir: string, added: string): Promise<readonly ByteRange[]> {
    const path = join(dir, added);
    return this.#toCopy(chain) === undefined ? this.#files.dataRanges(path) : this.#files.unsharedRanges(path);
  }

  /** The new chain's names, in order, once a snapshot has been written into what `begin` has made. */
  extend(chain: Chain, added: string): string[] {
    return this.#toCopy(chain) === undefined ? [...chain.layers, added] : [added];
  }

  /** Whether a checkpoint that adds to this chain would have too long a one. */
  isLong(chain: Chain): boolean {
    return this.#toCopy(chain) === undefined && chain.layers.length >= MAX_LAYERS;
  }

  /** Puts one file beside a chain's that holds what all but the first do, on stable storage. Returns the shorter chain's names. */
  shorten({ dir, layers: [first = "", ...others] }: Chain): Promise<string[]> {
    // One at a time: they are as large as memories, and many copies of one machine come to this point together.
    return this.#shortening.run(async () => {
      const merged = layerName();
      const path = join(dir, merged);
      await this.#join(
        others.map((name) => join(dir, name)),
        path,
      );
      await using file = await open(path, "r");
      await file.sync();
      return [first, merged];
    });
  }

  /** Links one file with all of a chain's memory as `target`: its only layer, or what is assembled of them, once for all who
   *  ask. */
  async assemble({ dir, layers }: Chain, target: string): Promise<void> {
    const [first = "", ...others] = layers;
    const last = others.at(-1);
    if (last === undefined) return link(join(dir, first), target);
    this.#hasAssembled = true;
    const path = join(this.#assembledDir, last);
    const links = (this.#linking.get(path) ?? 0) + 1;
    this.#linking.set(path, links);
    try {
      await this.#assembling.run(path, () => this.#assembleUnlessThere(path, { dir, layers }));
      await link(path, target);
    } finally {
      const left = (this.#linking.get(path) ?? 1) - 1;
      if (left > 0) this.#linking.set(path, left);
      else this.#linking.delete(path);
    }
  }

  /** Forgets assembled memories that no machine has linked, but for the last few. */
  async trim(): Promise<void> {
    if (!this.#hasAssembled) return;
    const unused: { path: string; mtimeMs: number }[] = [];
    for (const name of await readdir(this.#assembledDir)) {
      const path = join(this.#assembledDir, name);
      if (name.startsWith(".") || this.#linking.has(path)) continue;
      const found = await stat(path).catch(ignoreMissing);
      if (found?.nlink === 1) unused.push({ path, mtimeMs: found.mtimeMs });
    }
    unused.sort((a, b) => b.mtimeMs - a.mtimeMs);
    for (const { path } of unused.slice(KEPT_UNUSED)) {
      if (this.#linking.has(path)) continue;
      // At once, before anybody can find it there and count on it.
      const gone = join(this.#assembledDir, `.${newName()}`);
      renameSync(path, gone);
      await rm(gone);
    }
  }

  /** The memory that a snapshot is written over a copy of; undefined: it is written by itself. */
  #toCopy({ dir, layers: [first, ...others] }: Chain): string | undefined {
    return this.#sharesBlocks && first !== undefined && others.length === 0 ? join(dir, first) : undefined;
  }

  async #assembleUnlessThere(path: string, { dir, layers }: Chain): Promise<void> {
    try {
      const now = new Date();
      await utimes(path, now, now);
      return;
    } catch (error) {
      if (!isMissing(error)) throw error;
    }
    const temp = join(this.#assembledDir, `.${newName()}`);
    await this.#join(
      layers.map((name) => join(dir, name)),
      temp,
    );
    await rename(temp, path);
  }

  /** Makes one file of what these hold together, all of the memory's size. */
  async #join(sources: readonly string[], target: string): Promise<void> {
    const [first = ""] = sources;
    try {
      await writeFile(target, "", { flag: "wx", mode: 0o600 });
      await truncate(target, (await stat(first)).size);
      await this.#files.applyLayers(sources, target);
      await chmod(target, READABLE_BY_ALL);
    } catch (error) {
      await rm(target, { force: true });
      throw error;
    }
  }
}

export interface Chain {
  readonly dir: string;
  /** Names of files in `dir`, the complete one first. None: a memory of zeros. */
  readonly layers: readonly string[];
}

function layerName(): string {
  return `memory-${newName()}`;
}

async function sharesBlocks(files: DiskFiles, dir: string): Promise<boolean> {
  const [source, target] = [join(dir, `.${newName()}`), join(dir, `.${newName()}`)];
  try {
    await writeFile(source, Buffer.alloc(4096, 1));
    return (await files.copy(source, target)).shared;
  } finally {
    for (const path of [source, target]) await rm(path, { force: true });
  }
}
