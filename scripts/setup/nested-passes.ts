import { existsSync, mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { writeFileAtomic } from "../../src/lib/files.ts";
import { cacheDir, prune } from "./cache.js";
import { hashTree } from "./hash.ts";
import { nestedSystem } from "./nested-system.ts";
import { root } from "./node.js";

/** All of the checkout that the drivers' suites in the nested machine are made of; `test/architecture.test.ts` holds that the rooms
 *  of `src/` among them enter no others. */
const SOURCES =
  /^(?:src\/(?:domain|driver|gen|lib|network|store)\/|test\/(?:nested|host)\/|test\/bench\/|scripts\/setup\/nested|package-lock\.json$)/;
/** What the node side of a server has beside. */
const OF_NODE =
  /^src\/(?:(?:catalog|guest|orchestrator|proxy|telemetry)\/|server\/(?:node|driver|swap)\.ts|config\.ts)/;

/** Whose tests a suite holds: what is only another's is nothing to it. `node`: those that put Firecracker under an orchestrator. */
export type Tested = "firecracker" | "gvisor" | "node";
const OTHERS: Readonly<Record<Tested, { readonly sources: RegExp; readonly variables: RegExp }>> = {
  node: { sources: /^test\/host\/(?:gvisor|network|keeper)/, variables: /^AENV_TEST_RUNSC$/ },
  firecracker: {
    sources:
      /^(?:src\/driver\/gvisor|test\/nested\/(?:ladder|node|firecracker-guest|init-image)|test\/host\/(?:gvisor|network|keeper))/,
    variables: /^AENV_TEST_RUNSC$/,
  },
  gvisor: {
    sources:
      /^(?:src\/driver\/firecracker|test\/nested\/(?:firecracker|ladder|node|init-image|linux-bench|figures)|test\/host\/(?:firecracker|network|keeper))/,
    variables: /^AENV_TEST_(?:FIRECRACKER|JAILER|GUEST_KERNEL|GUEST_INITRD)$/,
  },
};

/** Whether a file of the checkout is one of those that a suite's result hangs on. */
export function isInput(path: string, tested: Tested): boolean {
  const isSource = SOURCES.test(path) || (tested === "node" && OF_NODE.test(path));
  return isSource && !OTHERS[tested].sources.test(path);
}

/** Names everything a run in the nested machine depends on: sources, programs, kernels, disks. */
export async function nestedInputs(env: Readonly<Record<string, string>>, tested: Tested): Promise<string> {
  const system = await nestedSystem();
  // Where programs of the host are looked for is nothing to those inside.
  const brought = Object.fromEntries(
    Object.entries(env).filter(([name]) => name !== "PATH" && !OTHERS[tested].variables.test(name)),
  );
  const paths = Object.entries({ ...brought, ...system }).map(([name, value]) => `${name}=${value}`);
  // What lies in the cache is named by its content.
  return hashTree(root, (path) => isInput(path, tested), [tested, process.version, process.arch, ...paths.sort()]);
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
