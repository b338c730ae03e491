import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { leasedServers } from "./leases.ts";

let dir: string | undefined;

/** Called by the test runner before the first file: says where files find servers that others have started. */
export function globalSetup(): void {
  dir = mkdtempSync(join(tmpdir(), "aenv-e2e-servers-"));
  process.env.AENV_TEST_SERVERS = dir;
}

/** Called by the test runner after the last file. */
export async function globalTeardown(): Promise<void> {
  if (dir === undefined) return;
  await Promise.all(leasedServers(dir).map((server) => server.stop()));
  rmSync(dir, { recursive: true });
}
