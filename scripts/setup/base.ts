import { copyFileSync, existsSync, readFileSync, renameSync, rmSync } from "node:fs";
import { join } from "node:path";
import { cacheDir, cached, makeDir, prune } from "./cache.js";
import { hashTree } from "./hash.ts";
import { debianSources } from "./mirrors.ts";
import { nodePackage, npmInstall, root } from "./node.js";
import { output, run } from "./run.ts";
import type { Step } from "./steps.ts";

const SUITE = "bookworm";
/** Node inside the template, from npm's registry: the line that E2B's own base has. */
const NODE_VERSION = "20.20.2";
const NPM_VERSION = "10.9.9";
const recipe = join(root, "scripts", "setup", "base-template");

/** Names what the template `base` is made of. */
export function baseRecipeHash(): string {
  return hashTree(recipe, () => true, [SUITE, NODE_VERSION, NPM_VERSION, process.arch]);
}

/** The template's file system as a tar file. */
export function baseTar(): string {
  return join(cacheDir(), "base", baseRecipeHash(), "rootfs.tar");
}

/** Makes the root file system of the template `base` from Debian's packages; no image registry is asked. */
export const baseStep: Step = {
  title: "root file system of the template base",
  estimateS: 100,

  pending() {
    return Promise.resolve(existsSync(baseTar()) ? undefined : "make from Debian packages");
  },

  async run() {
    await cached(join(baseTar(), ".."), async (temp) => {
      makeDir(temp);
      const tools = join(temp, "tools");
      await fetchNode(tools);
      await bootstrap(join(temp, "rootfs.tar"), tools);
      rmSync(tools, { recursive: true });
    });
    prune(join(cacheDir(), "base"), 2);
  },
};

/** The same unpacked beside the tar, for tests that start machines without a store. Not to be written to. */
export const baseTreeStep: Step = {
  title: "template base, unpacked for the tests",
  estimateS: 10,

  pending() {
    return Promise.resolve(existsSync(baseTree()) ? undefined : "unpack");
  },

  async run() {
    await cached(baseTree(), async (temp) => {
      makeDir(temp);
      const keep = ["--numeric-owner", "--xattrs", "--xattrs-include=*", "--same-permissions"];
      await run(["tar", "--extract", "--file", baseTar(), "--directory", temp, ...keep]);
    });
  },
};

export function baseTree(): string {
  return join(baseTar(), "..", "rootfs");
}

async function fetchNode(dir: string): Promise<void> {
  await npmInstall(dir, [`${nodePackage()}@${NODE_VERSION}`, `npm@${NPM_VERSION}`]);
  makeDir(join(dir, "bin"));
  copyFileSync(join(dir, "node_modules", nodePackage(), "bin", "node"), join(dir, "bin", "node"));
  renameSync(join(dir, "node_modules", "npm"), join(dir, "npm"));
}

async function bootstrap(tar: string, tools: string): Promise<void> {
  const packages = lines("packages.txt");
  const argv = [
    "mmdebstrap",
    "--variant=minbase",
    "--mode=root",
    ...lines("dpkg-options.txt").map((option) => `--dpkgopt=${option}`),
    ...(await aptOptions()),
    `--include=${packages.join(",")}`,
    `--customize-hook=${join(recipe, "customize.sh")}`,
    SUITE,
    tar,
    ...debianSources(SUITE),
  ];
  await run(argv, {
    env: {
      // Under /var/tmp: on a disk, and open to the user apt downloads as, which a home folder is not.
      TMPDIR: "/var/tmp",
      AENV_BASE_FILES: join(recipe, "files"),
      AENV_BASE_NODE: tools,
      AENV_BASE_ID: baseRecipeHash(),
    },
  });
}

/** For mmdebstrap: the host's apt settings without which its mirror may not be reachable or not be believed. */
export async function aptOptions(): Promise<string[]> {
  const wanted = /^Acquire::(?:https?::Proxy|Check-Valid-Until|Check-Date) "[^"]+";$/;
  const { stdout } = await output(["apt-config", "dump"]);
  return stdout.split("\n").flatMap((line) => (wanted.test(line) ? [`--aptopt=${line}`] : []));
}

function lines(name: string): string[] {
  const text = readFileSync(join(recipe, name), "utf8");
  return text.split("\n").filter((line) => line !== "" && !line.startsWith("#"));
}
