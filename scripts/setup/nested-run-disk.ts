import { cpSync, existsSync, globSync, mkdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { stripTypeScriptTypes } from "node:module";
import { basename, dirname, join } from "node:path";
import { root } from "./node.js";
import { run } from "./run.ts";

/** What is told to nested machines; each is told one of the commands by its name. */
export interface NestedCommands {
  /** Name → arguments of Node, from the root of the checkout. */
  readonly commands: ReadonlyMap<string, readonly string[]>;
  /** Files and folders are brought along, and named by where they are inside. */
  readonly env: Readonly<Record<string, string>>;
}

const SOURCES = [
  "src/**/*",
  "scripts/**/*",
  "test/**/*",
  "native/go.mod",
  "tools/go.mod",
  ".node-version",
  "package.json",
];
/** Where the checkout is inside. */
const INSIDE = "/checkout";
const COMMANDS = "nested-commands";
const MIB = 1024 ** 2;

/** Makes a disk at `path`, for any number of machines: the checkout with its types stripped, what it needs at run time, and the
 *  commands. */
export async function makeRunDisk(path: string, { commands, env }: NestedCommands): Promise<void> {
  const tree = `${path}-tree`;
  try {
    mkdirSync(tree, { recursive: true });
    copySources(tree);
    copyModules(tree);
    const brought = bringAlong(env, tree);
    mkdirSync(join(tree, COMMANDS));
    for (const [name, args] of commands) writeFileSync(join(tree, COMMANDS, name), script(args, brought));
    const bytes = Number((await run(["du", "--summarize", "--bytes", tree])).split("\t")[0]);
    const blocks = `${Math.ceil((bytes * 1.1) / MIB) + 64}M`;
    const options = ["-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-d", tree];
    await run(["mke2fs", ...options, path, blocks]);
  } finally {
    rmSync(tree, { recursive: true, force: true });
  }
}

function copySources(tree: string): void {
  for (const file of globSync(SOURCES, { cwd: root })) {
    const [from, to] = [join(root, file), join(tree, file)];
    if (!statSync(from).isFile()) continue;
    mkdirSync(dirname(to), { recursive: true });
    if (file.endsWith(".ts") && !file.endsWith(".d.ts")) writeFileSync(to, stripTypes(readFileSync(from, "utf8")));
    else cpSync(from, to);
  }
}

/** Without the warning that the way Node does it may change: the one it has is the one the project runs by. */
function stripTypes(source: string): string {
  const { emitWarning } = process;
  process.emitWarning = () => {};
  try {
    return stripTypeScriptTypes(source);
  } finally {
    process.emitWarning = emitWarning;
  }
}

/** The packages that run with the product, without what only editors read. */
function copyModules(tree: string): void {
  const manifest = (dir: string): { dependencies?: Record<string, string> } =>
    JSON.parse(readFileSync(join(dir, "package.json"), "utf8"));
  const names = new Set<string>();
  const add = (dir: string): void => {
    for (const name of Object.keys(manifest(dir).dependencies ?? {})) {
      if (names.has(name)) continue;
      names.add(name);
      add(join(root, "node_modules", name));
    }
  };
  add(root);
  for (const name of names) {
    cpSync(join(root, "node_modules", name), join(tree, "node_modules", name), {
      recursive: true,
      filter: (path) => !/\.(?:d\.[cm]?ts|map|md)$/.test(path),
    });
  }
}

/** Copies what variables name and returns them as they are inside. */
function bringAlong(env: Readonly<Record<string, string>>, tree: string): Record<string, string> {
  return Object.fromEntries(
    Object.entries(env).map(([name, value]) => {
      if (!value.startsWith("/") || !existsSync(value)) return [name, value];
      const path = join("parts", name, basename(value));
      cpSync(value, join(tree, path), { recursive: true, verbatimSymlinks: true });
      return [name, join(INSIDE, path)];
    }),
  );
}

function script(args: readonly string[], env: Readonly<Record<string, string>>): string {
  const exports = Object.entries(env).map(([name, value]) => `export ${name}=${quoted(value)}\n`);
  return `${exports.join("")}node ${args.map(quoted).join(" ")}\n`;
}

function quoted(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
