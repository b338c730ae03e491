/**
 * Which Node runs the project: this one when it is new enough, else the one in the cache, which npm's registry brings. Plain
 * JavaScript for Node 20.
 */
import { spawn } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { delimiter, dirname, join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { cacheDir, cached, cacheOwner, makeDir, withLock } from "./cache.js";

const NEEDED_MAJOR = 24;

/** The root of the checkout. */
export const root = fileURLToPath(new URL("../..", import.meta.url));

/** What the cache brings; launch.sh looks for the same. */
const VERSION = readFileSync(join(root, ".node-version"), "utf8").trim();

/** True when the Node that runs this is new enough for the project. */
export function isNewEnough() {
  return Number(process.versions.node.split(".")[0]) >= NEEDED_MAJOR;
}

/** The npm package that holds Node's binary for this machine. @param {string} [arch] */
export function nodePackage(arch = process.arch) {
  if (process.platform !== "linux" || (arch !== "x64" && arch !== "arm64")) {
    throw new Error(`aenv runs on Linux on x64 or arm64, not on ${process.platform} ${arch}`);
  }
  return `node-linux-${arch}`;
}

/** A Node that is new enough, undefined when none is there yet. */
export function findNode() {
  if (isNewEnough()) return process.execPath;
  const path = join(cacheDir(), "node", VERSION, "node_modules", nodePackage(), "bin", "node");
  return existsSync(path) ? path : undefined;
}

/** A Node that is new enough, brought into the cache first when it is not there yet. */
export async function ensureNode() {
  const found = findNode();
  if (found) return found;
  process.stdout.write(
    `  Node ${NEEDED_MAJOR} or newer is needed and this is ${process.versions.node}: fetching ${VERSION} into ${cacheDir()}\n`,
  );
  await withLock(join(cacheDir(), "lock"), () =>
    cached(join(cacheDir(), "node", VERSION), (temp) => npmInstall(temp, [`${nodePackage()}@${VERSION}`])),
  );
  const node = findNode();
  if (!node) throw new Error(`npm's package ${nodePackage()}@${VERSION} holds no bin/node`);
  return node;
}

/** Puts npm packages into a folder of their own. @param {string} dir @param {string[]} packages */
export async function npmInstall(dir, packages) {
  makeDir(dir);
  const options = ["--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts", "--loglevel=error"];
  const [program, ...args] = npm();
  /** @type {import("node:child_process").SpawnOptions} */
  const how = { stdio: ["ignore", "ignore", "inherit"], cwd: dir, ...cacheOwner() };
  const child = spawn(program, [...args, "install", "--prefix", dir, ...options, ...packages], how);
  const { code, signal } = await ended(child, program);
  if (code !== 0) {
    throw new Error(`npm install ${packages.join(" ")} ended with ${signal ?? code}: is npm's registry reachable?`);
  }
}

/**
 * How to start npm: the one that runs us, else the one on the path. Always by the machine's own Node: npm finds its global
 * settings (certificates, proxies) beside the Node that runs it.
 * @returns {[string, ...string[]]}
 */
export function npm() {
  const { npm_execpath: script, npm_node_execpath: node } = process.env;
  return node && script && /npm-cli\.c?js$/.test(script) ? [node, script] : ["npm"];
}

/** The path for programs that begin with `#!/usr/bin/env node` and want the Node that runs us. */
export function ownNodePath() {
  return `${dirname(process.execPath)}${delimiter}${process.env.PATH ?? ""}`;
}

/**
 * Runs a command as if it were this process: same terminal, signals passed on, same end.
 * @param {string} program
 * @param {string[]} args
 */
export async function replaceBy(program, args) {
  const child = spawn(program, args, { stdio: "inherit" });
  // The terminal sends SIGINT to the child as well; the others come to us alone.
  for (const signal of /** @type {const} */ (["SIGTERM", "SIGHUP"])) process.on(signal, () => child.kill(signal));
  process.on("SIGINT", () => {});
  const { code, signal } = await ended(child, program);
  if (signal) {
    process.removeAllListeners(signal);
    process.kill(process.pid, signal);
  }
  process.exit(code ?? 1);
}

/**
 * Entry of the scripts in scripts/: the module beside this file, in this process when its Node is new enough, else in a child
 * that takes over the terminal and the signals, and whose end is ours.
 * @param {string} name
 */
export async function runScript(name) {
  try {
    const node = await ensureNode();
    if (isNewEnough()) await import(new URL(name, import.meta.url).href);
    else await replaceBy(node, process.argv.slice(1));
  } catch (error) {
    fail(error);
  }
}

/**
 * The one way out of a script that failed: what we say ourselves is said plainly, a defect with its stack.
 * @param {unknown} error
 * @returns {never}
 */
export function fail(error) {
  const plain = error instanceof Error && error.constructor === Error;
  process.stderr.write(`\n${plain ? error.message : error instanceof Error ? error.stack : error}\n`);
  process.exit(1);
}

/** What launch.sh starts where the cache holds no Node: the module that the first argument names, if this Node can run it. */
export async function runProgram() {
  const [node = "", , module = "", ...args] = process.argv;
  if (!isNewEnough()) {
    const need = `aenv needs Node ${NEEDED_MAJOR} or newer and this is ${process.versions.node}`;
    process.stderr.write(`${need}: run \`npm run up\` in ${root} once, it brings one\n`);
    process.exit(1);
  }
  process.argv = [node, module, ...args];
  await import(pathToFileURL(module).href);
}

/**
 * @param {import("node:child_process").ChildProcess} child
 * @param {string} name
 * @returns {Promise<{ code: number | null, signal: NodeJS.Signals | null }>}
 */
function ended(child, name) {
  return new Promise((resolve, reject) => {
    child.once("error", (error) => reject(new Error(`cannot start ${name}: ${error.message}`, { cause: error })));
    child.once("exit", (code, signal) => resolve({ code, signal }));
  });
}
