import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, relative } from "node:path";
import { goEnv } from "./go.ts";
import { ownNodePath, root } from "./node.js";
import { run } from "./run.ts";

/** Pinned by the `tool` lines of native/go.mod. */
const PLUGINS = ["google.golang.org/protobuf/cmd/protoc-gen-go", "connectrpc.com/connect/cmd/protoc-gen-connect-go"];
const GENERATED = ["src/gen", "native/gen"];

/** Writes the code generated from proto/ below a folder (src/gen, native/gen). Throws when the plugins cannot be built. */
export async function generate(into: string): Promise<void> {
  await run(["go", "build", "-C", join(root, "native"), "-o", `${join(root, ".cache", "bin")}/`, ...PLUGINS], {
    env: await goEnv(),
    asOwner: true,
  });
  await run([join(root, "node_modules", ".bin", "buf"), "generate", "--output", into], {
    cwd: root,
    env: { PATH: ownNodePath() },
    asOwner: true,
  });
}

/** Paths of generated files that are not what proto/ yields now. */
export async function staleGenerated(): Promise<readonly string[]> {
  const temp = mkdtempSync(join(tmpdir(), "aenv-generate-"));
  try {
    // buf cleans the folders it writes to, which are to be there.
    for (const dir of GENERATED) cpSync(join(root, dir), join(temp, dir), { recursive: true });
    await generate(temp);
    return GENERATED.flatMap((dir) => differences(join(root, dir), join(temp, dir)));
  } finally {
    rmSync(temp, { recursive: true });
  }
}

function differences(present: string, fresh: string): string[] {
  const names = new Set([...filesBelow(present), ...filesBelow(fresh)]);
  const read = (dir: string, name: string): string | undefined => {
    try {
      return readFileSync(join(dir, name), "utf8");
    } catch {
      return undefined; // only one side has it
    }
  };
  return [...names]
    .filter((name) => read(present, name) !== read(fresh, name))
    .map((name) => relative(root, join(present, name)));
}

function filesBelow(dir: string): string[] {
  return readdirSync(dir, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => relative(dir, join(entry.parentPath, entry.name)));
}
