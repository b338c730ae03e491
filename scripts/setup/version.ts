import { join } from "node:path";
import { binDir, runscBuild } from "./go.ts";
import { hashTree } from "./hash.ts";
import { root } from "./node.js";
import { output } from "./run.ts";

/**
 * Names this build: the commit, then a hash of everything the server runs, so that a changed checkout is another build although
 * its commit is the same.
 */
export async function buildVersion(): Promise<string> {
  const { code, stdout } = await output([
    "git",
    "-c",
    `safe.directory=${root}`,
    "-C",
    root,
    "rev-parse",
    "--short=12",
    "HEAD",
  ]);
  const commit = code === 0 ? stdout.trim() : "nocommit";
  const runs = (path: string): boolean => path.endsWith(".ts") && !path.endsWith(".test.ts");
  const content = hashTree(join(root, "src"), (path) => runs(path) || path.endsWith(".js"), [
    await binDir(),
    await runscBuild(),
  ]);
  return `${commit}-${content.slice(0, 8)}`;
}
