import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { link, readdir, rename, rm, unlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { ignoreMissing, isMissing } from "#lib/files";
import { together } from "#lib/together";
import type { MachineId } from "../driver.ts";
import type { Chain } from "./memory-layers.ts";

interface MachineRecord {
  readonly jail: string;
  /** Of the driver that runs it, and so of its checkpoints. */
  readonly version: string;
}

/** The folder of one machine: which jail it runs in, and what its memory was at the last checkpoint. */
export class MachineFolder {
  readonly dir: string;
  /** Names in `base/`; undefined: not looked yet. */
  #kept: ReadonlySet<string> | undefined;

  constructor(machinesDir: string, id: MachineId) {
    this.dir = join(machinesDir, id);
  }

  /** Throws EEXIST when the id has been used. */
  make(): void {
    mkdirSync(this.dir, { mode: 0o700 });
    mkdirSync(this.#baseDir, { mode: 0o700 });
    this.#kept = new Set();
  }

  write(record: MachineRecord): void {
    writeFileSync(this.#recordFile, JSON.stringify(record));
  }

  /** undefined: none was written, or not whole. */
  read(): MachineRecord | undefined {
    try {
      return JSON.parse(readFileSync(this.#recordFile, "utf8")) as MachineRecord;
    } catch (error) {
      if (isMissing(error) || error instanceof SyntaxError) return undefined;
      throw error;
    }
  }

  /** What the next checkpoint adds to. undefined: nothing, because not everything that was written since is known. */
  readBase(): Chain | undefined {
    try {
      return { dir: this.#baseDir, layers: JSON.parse(readFileSync(this.#baseFile, "utf8")) as string[] };
    } catch (error) {
      if (isMissing(error)) return undefined;
      throw error;
    }
  }

  /** Keeps the chain's files for the next checkpoint, in place of those before. */
  async writeBase(chain: Chain): Promise<void> {
    const keep = await this.stageBase(chain);
    await keep();
  }

  /** Replaces this base by what `shorten` makes of it beside its files. */
  async shortenBase(base: Chain, shorten: (base: Chain) => Promise<string[]>): Promise<void> {
    // Whatever fails half-way, the next call looks.
    this.#kept = undefined;
    // What a server that was killed half-way has left.
    const strays = new Set(await readdir(this.#baseDir)).difference(new Set(base.layers));
    await together([...strays].map((name) => unlink(join(this.#baseDir, name))));
    await this.writeBase({ dir: base.dir, layers: await shorten(base) });
  }

  /** Does all of `writeBase` but the last step, which is returned: until then the next checkpoint does not know of the chain. */
  async stageBase({ dir, layers }: Chain): Promise<() => Promise<void>> {
    const kept = this.#kept ?? new Set(await readdir(this.#baseDir));
    const wanted = new Set(layers);
    // Whatever fails half-way, the next call looks.
    this.#kept = undefined;
    await together([...wanted.difference(kept)].map((name) => link(join(dir, name), join(this.#baseDir, name))));
    const staged = `${this.#baseFile}.new`;
    await writeFile(staged, JSON.stringify(layers));
    return async () => {
      await rename(staged, this.#baseFile);
      await together([...kept.difference(wanted)].map((name) => unlink(join(this.#baseDir, name))));
      this.#kept = wanted;
    };
  }

  /** From here on the record of written pages is not complete: whoever takes the machine up next must not rely on it. */
  async forgetBase(): Promise<void> {
    await unlink(this.#baseFile).catch(ignoreMissing);
  }

  /** Repeatable. */
  async remove(): Promise<void> {
    await rm(this.dir, { recursive: true, force: true });
  }

  get #recordFile(): string {
    return join(this.dir, "machine.json");
  }
  get #baseFile(): string {
    return join(this.dir, "base.json");
  }
  get #baseDir(): string {
    return join(this.dir, "base");
  }
}
