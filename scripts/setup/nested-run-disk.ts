import { copyFileSync, cpSync, existsSync, mkdirSync, rmSync, writeFileSync } from "node:fs";
import { basename, dirname, join, relative } from "node:path";
import { root } from "./node.js";
import { run } from "./run.ts";

/** What a machine is told to run: Node with a script. */
export interface NestedCommand {
  readonly script: string;
  /** Of Node. */
  readonly options: readonly string[];
  /** All that it is told. Files and folders are brought along, and named by where they are inside. */
  readonly env: Readonly<Record<string, string>>;
}

/** Where the disk is inside. */
const INSIDE = "/checkout";
const COMMANDS = "nested-commands";
/** Known to the initramfs. */
const MACHINE_SCRIPT = "test/nested/machine.sh";
const MIB = 1024 ** 2;
/** The variable with the folder of our own programs. */
export const PROGRAMS = "AENV_TEST_BIN_DIR";
/** Those of them that nothing starts there. */
const LEFT_OUT: readonly string[] = ["edge"];

/** Whether a machine gets a file of the folder of our programs, by its path in that. Another one of those that it does not get runs no suite
 *  again. */
export function isBrought(program: string): boolean {
  return !LEFT_OUT.includes(program);
}

/** The name of a command's script there, as traces of errors have it. */
export function scriptName(command: string): string {
  return `${command}.cjs`;
}

/** Makes a disk at `path`, for any number of machines, each of which is told one of the commands by its name: what that runs, and what
 *  it needs at run time. */
export async function makeRunDisk(path: string, commands: ReadonlyMap<string, NestedCommand>): Promise<void> {
  const tree = `${path}-tree`;
  try {
    mkdirSync(join(tree, dirname(MACHINE_SCRIPT)), { recursive: true });
    copyFileSync(join(root, MACHINE_SCRIPT), join(tree, MACHINE_SCRIPT));
    mkdirSync(join(tree, COMMANDS));
    for (const [name, { script, options, env }] of commands) {
      writeFileSync(join(tree, scriptName(name)), script);
      writeFileSync(join(tree, COMMANDS, name), commandLines([...options, scriptName(name)], bringAlong(env, tree)));
    }
    const bytes = Number((await run(["du", "--summarize", "--bytes", tree])).split("\t")[0]);
    const blocks = `${Math.ceil((bytes * 1.1) / MIB) + 64}M`;
    const options = ["-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-d", tree];
    await run(["mke2fs", ...options, path, blocks]);
  } finally {
    rmSync(tree, { recursive: true, force: true });
  }
}

/** Copies what variables name, unless another command has brought it, and returns them as they are inside. */
function bringAlong(env: Readonly<Record<string, string>>, tree: string): Record<string, string> {
  return Object.fromEntries(
    Object.entries(env).map(([name, value]) => {
      if (!value.startsWith("/") || !existsSync(value)) return [name, value];
      const path = join("parts", name, basename(value));
      if (!existsSync(join(tree, path))) {
        const filter = (source: string): boolean => name !== PROGRAMS || isBrought(relative(value, source));
        cpSync(value, join(tree, path), { recursive: true, verbatimSymlinks: true, filter });
      }
      return [name, join(INSIDE, path)];
    }),
  );
}

function commandLines(args: readonly string[], env: Readonly<Record<string, string>>): string {
  const exports = Object.entries(env).map(([name, value]) => `export ${name}=${quoted(value)}\n`);
  return `${exports.join("")}node ${args.map(quoted).join(" ")}\n`;
}

function quoted(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
