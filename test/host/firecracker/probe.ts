import { execFile } from "node:child_process";
import { accessSync, constants } from "node:fs";
import { join } from "node:path";
import { promisify } from "node:util";

/** Why real Firecracker cannot be tested on this machine, said loudly; undefined where it can. */
export async function whyNotTested(): Promise<string | undefined> {
  const why = await reason();
  if (why !== undefined) process.stdout.write(`\n!!! NOT TESTED: Firecracker with a toy guest: ${why}\n\n`);
  return why;
}

async function reason(): Promise<string | undefined> {
  if (process.getuid?.() !== 0) return "it needs root";
  const { AENV_TEST_FIRECRACKER, AENV_TEST_JAILER, AENV_TEST_BIN_DIR } = process.env;
  if (!AENV_TEST_FIRECRACKER || !AENV_TEST_JAILER) return "no Firecracker was found for tests (see above)";
  try {
    accessSync("/dev/kvm", constants.R_OK | constants.W_OK);
  } catch (error) {
    return `/dev/kvm cannot be opened: ${error instanceof Error ? error.message : error}`;
  }
  const probe = join(AENV_TEST_BIN_DIR ?? "", "kvmprobe");
  const { stdout } = await promisify(execFile)(probe, { timeout: 10_000 }).catch((error) => ({
    stdout: String(error.stdout || error),
  }));
  // It interprets the toy's instructions where it does not run them.
  return /ran|emulated/.test(stdout) ? undefined : `/dev/kvm runs nothing: ${stdout.trim()}`;
}
