import { readFile } from "node:fs/promises";
import { AenvError } from "#domain";
import type { CommandRunner } from "#lib/run";

const VERSION_TIMEOUT_MS = 20_000;

/** What `firecracker --version` says: `1.12.1`. A snapshot is restored only by the version that made it.
 *  Errors: unavailable, when it does not run or says something else. */
export async function firecrackerVersion(path: string, runner: CommandRunner): Promise<string> {
  const hint = "install it again: npm run up";
  const said = await runner.run([path, "--version"], { timeoutMs: VERSION_TIMEOUT_MS }).catch((cause) => {
    throw new AenvError("unavailable", `Firecracker does not run: ${path}`, { cause, hint });
  });
  const version = /^Firecracker v(\S+)$/m.exec(new TextDecoder().decode(said.stdout))?.[1];
  if (version === undefined)
    throw new AenvError("unavailable", `${path} is not Firecracker, or does not say its version`, { hint });
  return version;
}

/** What kind of processor this host has: vendor, family and model. */
export async function processorModel(): Promise<string> {
  const text = await readFile("/proc/cpuinfo", "utf8");
  const field = (name: string): string => new RegExp(`^${name}\\s*:\\s*(.+)$`, "m").exec(text)?.[1] ?? "unknown";
  return [field("vendor_id"), field("cpu family"), field("model")].join(" ");
}
