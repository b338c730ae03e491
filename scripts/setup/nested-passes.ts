import { existsSync, mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { writeFileAtomic } from "../../src/lib/files.ts";
import { cacheDir, prune } from "./cache.js";
import { hashTree } from "./hash.ts";
import { nestedSystem } from "./nested-system.ts";
import { root } from "./node.js";

/** All of the checkout that the suites of the nested machine are made of; `test/architecture.test.ts` holds that the rooms of
 *  `src/` among them enter no others. */
const SOURCES =
  /^(?:src\/(?:domain|driver|gen|lib|network|store)\/|test\/(?:nested|host)\/|test\/bench\/|scripts\/setup\/nested|package-lock\.json$)/;

/** Names everything a run in the nested machine depends on: sources, programs, kernels, disks. */
export async function nestedInputs(env: Readonly<Record<string, string>>): Promise<string> {
  const system = await nestedSystem();
  // Where programs of the host are looked for is nothing to those inside.
  const { PATH: _, ...brought } = env;
  const paths = Object.entries({ ...brought, ...system }).map(([name, value]) => `${name}=${value}`);
  // What lies in the cache is named by its content.
  return hashTree(root, (path) => SOURCES.test(path), [process.version, process.arch, ...paths.sort()]);
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
