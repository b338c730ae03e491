import { existsSync } from "node:fs";
import { join } from "node:path";
import { aptOptions } from "./base.ts";
import { cacheDir, cached, prune } from "./cache.js";
import { debianSources } from "./mirrors.ts";
import { run } from "./run.ts";

/**
 * The emulator: QEMU 11 of Debian 14, whatever this host is, unpacked in the cache with its libraries and never installed. Kernels
 * clear and copy memory by string instructions, which it emulates faster than those before 10 do; those before 10.2 lose interrupts.
 */
const SUITE = "forky";
const PACKAGES = ["qemu-system-x86", "seabios"];
const FORMAT = "1";
const LIBRARIES = ["usr/lib/x86_64-linux-gnu"];
const LOADER = "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2";

/** The folder it is unpacked in, made or not. */
export function emulatorDir(): string {
  return join(cacheDir(), "nested-qemu", `${SUITE}-${FORMAT}`);
}

export async function makeEmulator(): Promise<void> {
  await cached(emulatorDir(), async (temp) => {
    const options = ["--variant=extract", "--mode=root", `--include=${PACKAGES.join(",")}`, ...(await aptOptions())];
    await run(["mmdebstrap", ...options, SUITE, temp, ...debianSources(SUITE)], { env: { TMPDIR: "/var/tmp" } });
    if (!existsSync(join(temp, LOADER))) throw new Error(`the packages of ${SUITE} have no ${LOADER}`);
  });
  prune(join(cacheDir(), "nested-qemu"), 1);
}

/** Started through its own loader, with its own libraries: nothing of the host's is in it but the kernel. */
export function emulatorCommand(dir: string): {
  readonly argv: readonly string[];
  readonly env: Record<string, string>;
} {
  const libraries = LIBRARIES.map((path) => join(dir, path)).join(":");
  return {
    argv: [
      ...[join(dir, LOADER), "--library-path", libraries, join(dir, "usr/bin/qemu-system-x86_64")],
      ...["usr/share/seabios", "usr/share/qemu"].flatMap((path) => ["-L", join(dir, path)]),
    ],
    env: { QEMU_MODULE_DIR: join(dir, "usr/lib/x86_64-linux-gnu/qemu") },
  };
}
