import { createHash } from "node:crypto";
import { readdirSync, readFileSync, statSync } from "node:fs";
import { join, relative } from "node:path";

/** Hash of the names, modes and bytes of the files below `dir` that `include` (told their path in it) names, and of `salt`. */
export function hashTree(dir: string, include: (path: string) => boolean, salt: readonly string[] = []): string {
  const hash = createHash("sha256");
  hash.update(JSON.stringify(salt));
  for (const path of files(dir).sort()) {
    const name = relative(dir, path);
    if (!include(name)) continue;
    const executable = (statSync(path).mode & 0o111) !== 0;
    const data = readFileSync(path);
    hash.update(`\n${JSON.stringify(name)} ${executable} ${data.length}\n`);
    hash.update(data);
  }
  return hash.digest("hex").slice(0, 16);
}

/** Paths of the files below a folder; hidden folders and node_modules are left out. */
function files(dir: string): string[] {
  return readdirSync(dir, { withFileTypes: true }).flatMap((entry) => {
    const path = join(dir, entry.name);
    if (!entry.isDirectory()) return entry.isFile() ? [path] : [];
    return entry.name === "node_modules" || entry.name === ".git" || entry.name === ".cache" ? [] : files(path);
  });
}
