import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { writeFileAtomic } from "../../src/lib/files.ts";
import { cacheDir, prune } from "./cache.js";
import { hashTree } from "./hash.ts";
import { isBrought, type NestedCommand, PROGRAMS } from "./nested-run-disk.ts";
import { nestedSystem } from "./nested-system.ts";
import { root } from "./node.js";

/** How a machine is made, and what it starts with. */
const MACHINE = /^(?:scripts\/setup\/nested[a-z-]*\.ts|test\/nested\/machine\.sh)$/;

/** Names everything a run in the nested machine depends on: what it runs and is told, how that is done, kernels, disks. The folder of our
 *  programs is named by the sources of all of them, so what is in it counts. */
export async function nestedInputs({ script, options, env }: NestedCommand): Promise<string> {
  const told = Object.entries({ ...env, ...(await nestedSystem()) }).map(
    ([name, value]) => `${name}=${name === PROGRAMS ? hashTree(value, isBrought) : content(value)}`,
  );
  const facts = [script, ...options, process.version, process.arch, ...told.sort()];
  return hashTree(root, (path) => MACHINE.test(path), facts);
}

/** What lies in the cache is named by its content; of another file that is brought along it is told. */
function content(value: string): string {
  if (!value.startsWith("/") || value.startsWith(`${cacheDir()}/`) || !existsSync(value)) return value;
  return `${value} ${createHash("sha256").update(readFileSync(value)).digest("hex")}`;
}

/** Which suites have passed with certain inputs. In the cache: without it they run again. */
export class NestedPasses {
  readonly #dir: string;

  constructor(inputs: string) {
    this.#dir = join(cacheDir(), "nested-passed", inputs);
  }

  /** What there is to say of it; undefined when it has not passed. */
  find(suite: string): string | undefined {
    const file = join(this.#dir, suite);
    return existsSync(file) ? readFileSync(file, "utf8") : undefined;
  }

  async add(suite: string, how: string): Promise<void> {
    mkdirSync(this.#dir, { recursive: true });
    const when = new Date().toISOString();
    const text = `${how} with the very same inputs, on ${when}; to run it again: npm test -- nested`;
    await writeFileAtomic(join(this.#dir, suite), text);
    prune(join(this.#dir, ".."), 8);
  }
}
