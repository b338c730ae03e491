import { existsSync, mkdirSync, readdirSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";
import { localRunner } from "#lib/spawn";
import { connectStore } from "#store";
import { baseRecipeHash } from "../../scripts/setup/base.ts";
import { cacheDir, cached, makeDir, prune } from "../../scripts/setup/cache.js";
import { dataPaths } from "../../src/config.ts";

const folder = join(cacheDir(), "test-images");
const LEASE = "lent";

/**
 * The image that these native programs make of `base`: made by the first server that needs it, and lent to the others, for which
 * that is half of their start. They share its file, which nobody ever changes.
 */
export class BaseImage {
  readonly #path: string;

  constructor(binDir: string) {
    this.#path = join(folder, `${baseRecipeHash()}-${basename(binDir)}`);
  }

  /** Puts it into the data folder of a server that has not been started. Returns its digest, undefined when it has yet to be made. */
  async lendTo(dataDir: string): Promise<string | undefined> {
    if (!existsSync(this.#path)) return undefined;
    const [hex = ""] = readdirSync(this.#path);
    const images = imagesOf(dataDir);
    const digest = `sha256:${hex}`;
    const leases = join(dataPaths(dataDir).blobs, "leases");
    for (const dir of [images, leases]) mkdirSync(dir, { recursive: true, mode: 0o700 });
    await share(join(this.#path, hex), images);
    // A server that starts removes images that nobody holds, as this one until its template is built.
    const held = JSON.stringify({ leaseId: LEASE, digests: [digest] });
    writeFileSync(join(leases, `${LEASE}.json`), held, { mode: 0o600 });
    return digest;
  }

  /** Lets go of what was lent, once a template holds it. */
  async letGo(dataDir: string): Promise<void> {
    const store = connectStore(dataPaths(dataDir).blobdSocket);
    try {
      await store.release(LEASE);
    } finally {
      store.close();
    }
  }

  /** Keeps the one that a server has made. */
  async keep(dataDir: string, digest: string): Promise<void> {
    const image = join(imagesOf(dataDir), digest.slice("sha256:".length));
    try {
      await cached(this.#path, async (temp) => {
        makeDir(temp);
        await share(image, temp);
      });
    } catch (error) {
      // Another process may have been quicker.
      if (!existsSync(this.#path)) throw error;
    }
    prune(folder, 4);
  }
}

function imagesOf(dataDir: string): string {
  return join(dataPaths(dataDir).blobs, "images");
}

/** By links where both are on one file system, else as a copy. */
async function share(from: string, into: string): Promise<void> {
  const runner = localRunner();
  const linked = await runner.run(["cp", "--archive", "--link", from, into], { check: false });
  if (linked.exitCode !== 0) await runner.run(["cp", "--archive", "--reflink=auto", from, into]);
}
