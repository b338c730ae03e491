import { chmod, link, mkdir, readdir, rename, rm, stat, unlink, utimes, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { ByteRange, DiskFiles } from "#lib/disk-files";
import { isMissing } from "#lib/files";
import { type Expected, takeOver } from "./checkpoint.ts";
import { newName } from "./names.ts";

/** Longest chain of a checkpoint's memory. */
export const MAX_LAYERS = 5;
const READABLE_BY_ALL = 0o444;
/** Assembled memories that no machine uses and that stay all the same. */
const KEPT_UNUSED = 2;

/**
 * The guest's memory on disk: layers, each a sparse file of the memory's size, that hold what was written since the one
 * before; the first is complete. Layers never change, so chains share them by hard links. A machine maps one file, so a chain
 * is assembled into one: where the file system shares blocks between files at once and for next to nothing (then every chain
 * has one layer), elsewhere when a machine is first restored from it, for all its clones together.
 */
export class MemoryLayers {
  readonly #files: DiskFiles;
  readonly #assembledDir: string;
  readonly #sharesBlocks: boolean;
  readonly #assembling = new Map<string, Promise<void>>();
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

  /** Adds what was written to a chain and puts the whole into `dir`: `written` is moved there, the chain's files are
   *  linked. Returns the new chain's names, in order, and where the new layer has data. */
  async extend(
    chain: Chain,
    written: { readonly path: string } & Expected,
    dir: string,
  ): Promise<{ layers: string[]; dirty: readonly ByteRange[] }> {
    const added = layerName();
    await takeOver(written.path, join(dir, added), written);
    const dirty = await this.#files.dataRanges(join(dir, added));
    for (const name of chain.layers) await link(join(chain.dir, name), join(dir, name));
    const layers = [...chain.layers, added];
    if (this.#sharesBlocks) return { layers: await this.#merge(dir, layers, 0), dirty };
    return { layers: layers.length > MAX_LAYERS ? await this.#merge(dir, layers, 1) : layers, dirty };
  }

  /** Links one file with all of a chain's memory as `target`: its only layer, or what is assembled of them, once for all who
   *  ask. */
  async assemble({ dir, layers }: Chain, target: string): Promise<void> {
    const [first = "", ...others] = layers;
    const last = others.at(-1);
    if (last === undefined) return link(join(dir, first), target);
    const path = join(this.#assembledDir, last);
    const links = (this.#linking.get(path) ?? 0) + 1;
    this.#linking.set(path, links);
    try {
      await this.#assembleOnce(path, { dir, layers });
      await link(path, target);
    } finally {
      const left = (this.#linking.get(path) ?? 1) - 1;
      if (left > 0) this.#linking.set(path, left);
      else this.#linking.delete(path);
    }
  }

  /** Forgets assembled memories that no machine has linked, but for the last few. */
  async trim(): Promise<void> {
    const unused: { path: string; mtimeMs: number }[] = [];
    for (const name of await readdir(this.#assembledDir)) {
      const path = join(this.#assembledDir, name);
      if (name.startsWith(".") || this.#linking.has(path)) continue;
      const found = await stat(path).catch(undefinedIfMissing);
      if (found?.nlink === 1) unused.push({ path, mtimeMs: found.mtimeMs });
    }
    unused.sort((a, b) => b.mtimeMs - a.mtimeMs);
    for (const { path } of unused.slice(KEPT_UNUSED)) if (!this.#linking.has(path)) await rm(path, { force: true });
  }

  #assembleOnce(path: string, chain: Chain): Promise<void> {
    const known = this.#assembling.get(path);
    if (known !== undefined) return known;
    const made = this.#assembleUnlessThere(path, chain).finally(() => this.#assembling.delete(path));
    this.#assembling.set(path, made);
    return made;
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

  /** Replaces the layers from number `from` on by one. */
  async #merge(dir: string, layers: readonly string[], from: number): Promise<string[]> {
    const merging = layers.slice(from);
    if (merging.length < 2) return [...layers];
    const merged = layerName();
    await this.#join(
      merging.map((name) => join(dir, name)),
      join(dir, merged),
    );
    for (const name of merging) await unlink(join(dir, name));
    return [...layers.slice(0, from), merged];
  }

  async #join(sources: readonly string[], target: string): Promise<void> {
    const [first = "", ...others] = sources;
    try {
      await this.#files.copy(first, target);
      await this.#files.applyLayers(others, target);
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

function undefinedIfMissing(error: unknown): undefined {
  if (!isMissing(error)) throw error;
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
