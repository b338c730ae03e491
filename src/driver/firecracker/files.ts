import { chmod, copyFile, mkdir, readdir, rename, rm, stat, utimes } from "node:fs/promises";
import { join } from "node:path";
import { ignoreMissing, isMissing, syncFile } from "#lib/files";
import { Flights } from "#lib/flights";
import { newName } from "./names.ts";
import type { FirecrackerOptions } from "./parts.ts";

const MKFS_TIMEOUT_MS = 120_000;
const READABLE_BY_ALL = 0o444;
const SAME_TIME_MS = 2;
/** Sizes of disks and builds of the agent that stay prepared: those used last. */
const KEPT = 16;

/** Size of the file for a disk of the size asked for: mke2fs counts in KiB. */
export function upperBytes(diskBytes: number): number {
  return Math.floor(diskBytes / 1024) * 1024;
}

/**
 * Files that machines are started with and that are the same for many: the kernel and its initrd, empty writable layers, and
 * the drive with the agent. They lie where they can be linked into jails, and are replaced by renaming, never changed.
 */
export class Files {
  readonly #options: FirecrackerOptions;
  readonly #making = new Flights();

  private constructor(options: FirecrackerOptions) {
    this.#options = options;
  }

  /** Throws when the kernel or the initrd cannot be read. */
  static async open(options: FirecrackerOptions): Promise<Files> {
    const files = new Files(options);
    for (const name of ["boot", "uppers", "tools"]) {
      const dir = join(options.dir, name);
      await mkdir(dir, { recursive: true, mode: 0o700 });
      for (const left of await readdir(dir)) if (left.endsWith(".new")) await rm(join(dir, left));
    }
    await files.#bring(options.firecrackerPath, files.program, 0o555);
    await files.#bring(options.kernelPath, files.kernel);
    await files.#bring(options.initrdPath, files.initrd);
    return files;
  }

  /** Always under this name: the jailer calls the folders of jails after it. */
  get program(): string {
    return join(this.#options.dir, "boot", "firecracker");
  }

  get kernel(): string {
    return join(this.#options.dir, "boot", "vmlinux");
  }

  get initrd(): string {
    return join(this.#options.dir, "boot", "initrd");
  }

  /** An empty file system of this size, to be copied. */
  async emptyUpper(sizeBytes: number): Promise<string> {
    const path = join(this.#options.dir, "uppers", `${sizeBytes}.ext4`);
    await this.#once(path, async (temp) => {
      // Without a journal: the file system lives and dies with the memory of its machine. Nothing is kept for root, and no
      // table is written that the kernel would fill in later.
      const format = ["-F", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-E", "lazy_itable_init=1,nodiscard"];
      await this.#options.runner.run(["mke2fs", "-q", ...format, temp, `${upperBytes(sizeBytes) / 1024}k`], {
        timeoutMs: MKFS_TIMEOUT_MS,
      });
    });
    return path;
  }

  /** The drive with this agent. */
  async tools(agentDir: string): Promise<string> {
    const { ino, size, mtimeMs } = await stat(join(agentDir, "envd"));
    const path = join(this.#options.dir, "tools", `${ino}-${size}-${Math.floor(mtimeMs)}.erofs`);
    await this.#once(path, (temp) => this.#options.diskFiles.packDirectory(agentDir, temp));
    return path;
  }

  /** Makes the file unless it is there; once for all who ask meanwhile. */
  #once(path: string, make: (temp: string) => Promise<void>): Promise<void> {
    return this.#making.run(path, async () => {
      const now = new Date();
      try {
        await utimes(path, now, now);
      } catch (error) {
        if (!isMissing(error)) throw error;
        await this.#replace(path, make);
        await this.#forgetOldest(join(path, ".."));
      }
    });
  }

  /** Brings a file from elsewhere, unless it is here already. */
  async #bring(source: string, path: string, mode = READABLE_BY_ALL): Promise<void> {
    const [wanted, found] = await Promise.all([stat(source), stat(path).catch(ignoreMissing)]);
    // A copy has its source's time, but for what is lost where times are given as fractions.
    if (found?.size === wanted.size && Math.abs(found.mtimeMs - wanted.mtimeMs) < SAME_TIME_MS) return;
    const copy = async (temp: string): Promise<void> => {
      await copyFile(source, temp);
      await utimes(temp, wanted.atime, wanted.mtime);
    };
    await this.#replace(path, copy, mode);
  }

  async #replace(path: string, make: (temp: string) => Promise<void>, mode = READABLE_BY_ALL): Promise<void> {
    const temp = `${path}.${newName()}.new`;
    try {
      await make(temp);
      await chmod(temp, mode);
      // It is used for as long as it is there: also after a power cut, which a name may outlive without its bytes.
      await syncFile(temp);
      await rename(temp, path);
    } catch (error) {
      await rm(temp, { force: true });
      throw error;
    }
  }

  async #forgetOldest(dir: string): Promise<void> {
    const names = (await readdir(dir)).filter((name) => !name.endsWith(".new"));
    const found = await Promise.all(
      names.map(async (name) => ({ path: join(dir, name), ...(await stat(join(dir, name))) })),
    );
    found.sort((a, b) => b.mtimeMs - a.mtimeMs);
    for (const { path } of found.slice(KEPT)) await rm(path, { force: true });
  }
}
