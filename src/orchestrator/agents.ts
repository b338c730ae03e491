import { createHash } from "node:crypto";
import { chmod, copyFile, mkdir, mkdtemp, readdir, readFile, rename, rm } from "node:fs/promises";
import { join } from "node:path";
import { isMissing, syncFile } from "#lib/files";

/**
 * Agents by content: an old snapshot resumes with the very agent it was made with, so a newer one never replaces a file in
 * place. Puts the agent at `binary` under `agentsDir/<sha256>/envd` and returns the digest.
 */
export async function installAgent(binary: string, agentsDir: string): Promise<string> {
  const digest = createHash("sha256")
    .update(await readFile(binary))
    .digest("hex");
  await mkdir(agentsDir, { recursive: true });
  const dir = join(agentsDir, digest);
  if ((await readdir(agentsDir)).includes(digest)) return digest;
  const temp = await mkdtemp(join(agentsDir, ".new-"));
  await copyFile(binary, join(temp, "envd"));
  await chmod(join(temp, "envd"), 0o555);
  await chmod(temp, 0o755);
  try {
    await rename(temp, dir);
  } catch (error) {
    await rm(temp, { recursive: true, force: true });
    throw error;
  }
  await syncFile(agentsDir);
  return digest;
}

/** Removes agents that nothing was made with. */
export async function removeUnusedAgents(agentsDir: string, used: ReadonlySet<string>): Promise<void> {
  let names: string[];
  try {
    names = await readdir(agentsDir);
  } catch (error) {
    if (isMissing(error)) return;
    throw error;
  }
  for (const name of names) if (!used.has(name)) await rm(join(agentsDir, name), { recursive: true, force: true });
}
