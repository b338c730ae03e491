import { mkdirSync, mkdtempSync, rmdirSync, rmSync, statfsSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { localRunner } from "#lib/spawn";

/** Room for `base`, its conversion, the share that pulls leave free, and what the sandboxes of a run write. */
const DISK_BYTES = 4 * 1024 ** 3;

/** A file system of its own for a data folder, in an image file that takes only what is written: one that can be filled. */
export class Disk implements AsyncDisposable {
  readonly #dir: string;
  readonly #mount: string;
  readonly #ballast: string;

  private constructor(dir: string) {
    this.#dir = dir;
    this.#mount = join(dir, "disk");
    this.#ballast = join(this.#mount, "ballast");
  }

  static async make(): Promise<Disk> {
    const disk = new Disk(mkdtempSync(join(tmpdir(), "aenv-chaos-")));
    const image = join(disk.#dir, "image");
    writeFileSync(image, "");
    truncateSync(image, DISK_BYTES);
    await localRunner().run(["mkfs.ext4", "-q", "-m", "0", image]);
    mkdirSync(disk.#mount);
    await localRunner().run(["mount", "-o", "loop", image, disk.#mount]);
    mkdirSync(disk.dataDir, { mode: 0o700 });
    return disk;
  }

  get dataDir(): string {
    return join(this.#mount, "data");
  }

  /** Leaves this much free, at most. */
  async fill(leaveBytes: number): Promise<void> {
    mkdirSync(this.#ballast, { recursive: true });
    let size = Number.POSITIVE_INFINITY;
    for (let files = 0; ; files += 1) {
      const { bavail, bsize } = statfsSync(this.#mount);
      size = Math.min(size, bavail * bsize - leaveBytes);
      if (size < bsize) return;
      const file = join(this.#ballast, String(files));
      const { exitCode } = await localRunner().run(["fallocate", "-l", String(size), file], { check: false });
      // The file system needs some of it for itself.
      if (exitCode !== 0) size = Math.floor(size / 2);
    }
  }

  empty(): void {
    rmSync(this.#ballast, { recursive: true, force: true });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    // What a server that failed to start has left in it goes with it.
    await localRunner().run(["umount", "--lazy", this.#mount]);
    rmSync(join(this.#dir, "image"));
    rmdirSync(this.#mount);
    rmdirSync(this.#dir);
  }
}
