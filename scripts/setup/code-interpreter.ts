import { copyFileSync, cpSync, existsSync, readFileSync, rmSync } from "node:fs";
import { availableParallelism } from "node:os";
import { join } from "node:path";
import { baseRecipeHash, baseTar } from "./base.ts";
import { cacheDir, cached, makeDir, prune } from "./cache.js";
import { hashTree } from "./hash.ts";
import { npm, root } from "./node.js";
import { output, run } from "./run.ts";
import type { Step } from "./steps.ts";
import { systemPython } from "./venv.ts";

/** Fetches packages of Python for another Python than the one that runs it; from PyPI. */
const UV = "uv==0.13.9";
/** The Python of the template `base`, and the oldest C library its wheels may ask for. */
const PYTHON_VERSION = "3.11";
const PLATFORM = `${process.arch === "arm64" ? "aarch64" : "x86_64"}-manylinux_2_36`;
const SITE = `usr/local/lib/python${PYTHON_VERSION}/dist-packages`;
const SERVER_LIB = "opt/code-interpreter/lib";
const recipe = join(root, "scripts", "setup", "code-interpreter-template");

/** Names what the template is made of. `extra` is the content of a requirements file of the user's, "" for none. */
export function interpreterHash(extra = ""): string {
  const keep = (path: string): boolean => !path.includes("__pycache__");
  return hashTree(recipe, keep, [baseRecipeHash(), UV, PYTHON_VERSION, PLATFORM, extra]);
}

/** The template's file system as a tar file. */
export function interpreterTar(extra = ""): string {
  return join(cacheDir(), "code-interpreter", interpreterHash(extra), "rootfs.tar");
}

/** Makes the root file system of the template code-interpreter-v1 from that of `base`, PyPI's and npm's packages. */
export const interpreterStep: Step = interpreterStepFor(undefined);

/** @param extraFile requirements of the user's own, as pip reads them, beside ours */
export function interpreterStepFor(extraFile: string | undefined): Step {
  const extra = extraFile === undefined ? "" : readFileSync(extraFile, "utf8");
  const tar = interpreterTar(extra);
  return {
    title: "root file system of the template code-interpreter-v1",
    estimateS: 60,

    pending() {
      return Promise.resolve(existsSync(tar) ? undefined : "make from PyPI's and npm's packages");
    },

    async run(note) {
      await cached(join(tar, ".."), async (temp) => {
        makeDir(temp);
        note("unpacking base");
        const tree = join(temp, "rootfs");
        makeDir(tree);
        await run(["tar", "--extract", "--file", baseTar(), "--directory", tree, ...TAR_KEEP, "--same-permissions"]);
        note("fetching packages");
        await Promise.all([fetchPython(tree, extraFile), fetchKernels(join(temp, "node"))]);
        cpSync(join(temp, "node", "node_modules"), join(tree, "opt/code-interpreter/node_modules"), {
          recursive: true,
        });
        note("compiling");
        await run(["cp", "-RT", "--preserve=mode", join(recipe, "files"), tree]);
        await run([join(recipe, "finish.sh"), tree, String(availableParallelism())]);
        note("packing");
        await run(["chown", "-R", "root:root", ...[SITE, "opt/code-interpreter"].map((path) => join(tree, path))]);
        await run(["tar", "--create", "--file", join(temp, "rootfs.tar"), "--directory", tree, ...TAR_KEEP, "."]);
        for (const name of ["rootfs", "node"]) rmSync(join(temp, name), { recursive: true });
      });
      prune(join(cacheDir(), "code-interpreter"), 2);
    },
  };
}

const TAR_KEEP = ["--numeric-owner", "--xattrs", "--xattrs-include=*"];

/** Wheels only, by their hashes; what a user adds is taken as it comes, and may not change what is pinned. */
async function fetchPython(tree: string, extraFile: string | undefined): Promise<void> {
  const uv = await cached(join(cacheDir(), "venv", UV.replace("==", "-")), async (temp) => {
    await run([systemPython(), "-m", "venv", temp], { asOwner: true });
    await run([join(temp, "bin", "python"), "-m", "pip", "install", "--quiet", UV], { asOwner: true });
  });
  const env = await packageIndex();
  const install = async (dir: string, args: readonly string[]): Promise<void> => {
    const argv = [join(uv, "bin", "uv"), "pip", "install", "--quiet", "--no-build", "--no-cache", "--link-mode=copy"];
    const how = ["--python-version", PYTHON_VERSION, "--python-platform", PLATFORM, "--python", systemPython()];
    await run([...argv, ...how, "--target", join(tree, dir), ...args], { env });
  };
  const pinned = (name: string): string[] => ["--no-deps", "--require-hashes", "-r", join(recipe, name)];
  await install(SERVER_LIB, pinned("server-requirements.txt"));
  await install(SITE, pinned("requirements.txt"));
  if (extraFile !== undefined) await install(SITE, ["-c", join(recipe, "requirements.txt"), "-r", extraFile]);
}

/** The index that this machine's pip is set to, for uv, which does not read pip's settings. */
async function packageIndex(): Promise<Record<string, string>> {
  const { code, stdout } = await output([systemPython(), "-m", "pip", "config", "get", "global.index-url"]);
  const index = process.env.PIP_INDEX_URL ?? (code === 0 ? stdout.trim() : "");
  return index === "" || process.env.UV_DEFAULT_INDEX !== undefined ? {} : { UV_DEFAULT_INDEX: index };
}

/** The kernels that are programs for Node, as package-lock.json says. Their parts are built already: no script is run. */
async function fetchKernels(dir: string): Promise<void> {
  makeDir(dir);
  for (const name of ["package.json", "package-lock.json"]) copyFileSync(join(recipe, name), join(dir, name));
  await run([...npm(), "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"], {
    cwd: dir,
    asOwner: true,
  });
}
