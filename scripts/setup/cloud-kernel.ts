import { readdirSync, readFileSync, statSync } from "node:fs";
import { basename, join } from "node:path";
import { cacheDir, cached, makeDir, prune } from "./cache.js";
import { output, run } from "./run.ts";

/** Debian's kernel for virtual machines, unpacked and never installed. */
export interface CloudKernel {
  /** As in /lib/modules: 6.1.0-57-cloud-amd64. */
  readonly release: string;
  /** Where the package is unpacked. */
  readonly dir: string;
}

interface Package {
  readonly name: string;
  readonly version: string;
}

const DEBIAN_ARCH: Readonly<Partial<Record<NodeJS.Architecture, string>>> = { x64: "amd64", arm64: "arm64" };
const kept = join(cacheDir(), "cloud-kernel");

/** The kernel package that apt would install now, when the cache has it. */
export async function findCloudKernel(): Promise<CloudKernel | undefined> {
  const named = await namedPackage();
  if (named === undefined) return undefined;
  const dir = entry(named);
  return statSync(dir, { throwIfNoEntry: false }) === undefined ? undefined : opened(dir);
}

/** The same, brought into the cache first when it is not there. Errors: no apt, or it knows no such package. */
export async function fetchCloudKernel(): Promise<CloudKernel> {
  const found = await findCloudKernel();
  if (found !== undefined) return found;
  let named = await namedPackage();
  if (named === undefined || !(await download(named))) {
    // No lists yet, or the mirror has moved on since they were fetched.
    await run(["apt-get", "update"]);
    asked = undefined;
    named = await namedPackage();
    if (named === undefined)
      throw new Error(`apt knows no package ${metaPackage()}: is this Debian, with its main archive?`);
    if (!(await download(named))) throw new Error(`apt-get download ${named.name}=${named.version} brought nothing`);
  }
  prune(kept, 2);
  return opened(entry(named));
}

/** The kernel as a boot loader takes it. */
export function bootImage({ dir, release }: CloudKernel): string {
  return join(dir, "boot", `vmlinuz-${release}`);
}

/**
 * Files of the named modules and of all they depend on, each after those it needs. What is built into the kernel has none.
 * Throws when the kernel has no such module.
 */
export function modulesInOrder({ dir, release }: CloudKernel, names: readonly string[]): string[] {
  const root = join(dir, "lib", "modules", release);
  const builtIn = new Set(readFileSync(join(root, "modules.builtin"), "utf8").split("\n").map(moduleName));
  const files = new Map<string, string>();
  for (const path of readdirSync(root, { recursive: true, encoding: "utf8" }))
    if (path.endsWith(".ko")) files.set(moduleName(path), join(root, path));
  const ordered = new Set<string>();
  const add = (name: string): void => {
    const file = files.get(name);
    if (file === undefined) {
      if (builtIn.has(name)) return;
      throw new Error(`kernel ${release} has no module ${name}`);
    }
    if (ordered.has(file)) return;
    for (const needed of dependencies(file)) add(needed);
    ordered.add(file);
  };
  for (const name of names) add(moduleName(name));
  return [...ordered];
}

/** What a signed module ends with, after the signature and twelve bytes about it of which the last four are its length. */
const SIGNED = Buffer.from("~Module signature appended~\n");
const ABOUT_SIGNATURE_BYTES = 12;

/** A module without its signature, which a kernel takes that does not insist on one. To check it takes an emulated processor up to a
 *  second. */
export function withoutSignature(module: Buffer): Buffer {
  const end = module.length - SIGNED.length;
  if (end < ABOUT_SIGNATURE_BYTES || !module.subarray(end).equals(SIGNED)) return module;
  return module.subarray(0, end - ABOUT_SIGNATURE_BYTES - module.readUInt32BE(end - 4));
}

/** A module's name is written with - or _, and means the same. */
function moduleName(path: string): string {
  return basename(path, ".ko").replaceAll("-", "_");
}

/** A module says itself what it needs; the lists in /lib/modules are made where a kernel is installed. */
function dependencies(file: string): string[] {
  const names = /\0depends=([^\0]+)\0/.exec(readFileSync(file, "latin1"))?.[1];
  return names === undefined ? [] : names.split(",").map(moduleName);
}

let asked: Promise<Package | undefined> | undefined;

/** What apt's lists name; asking them takes most of a second. */
function namedPackage(): Promise<Package | undefined> {
  asked ??= askApt();
  return asked;
}

async function askApt(): Promise<Package | undefined> {
  const { code, stdout } = await output(["apt-cache", "show", "--no-all-versions", metaPackage()]);
  const match = /^Depends: (linux-image-\S+) \(= ([^)]+)\)/m.exec(stdout);
  return code !== 0 || match?.[1] === undefined || match[2] === undefined
    ? undefined
    : { name: match[1], version: match[2] };
}

function metaPackage(): string {
  return `linux-image-cloud-${DEBIAN_ARCH[process.arch] ?? process.arch}`;
}

function entry({ name, version }: Package): string {
  return join(kept, `${name}_${version.replace(":", "%")}`);
}

function opened(dir: string): CloudKernel {
  const release = readdirSync(join(dir, "lib", "modules"))[0];
  if (release === undefined) throw new Error(`${dir} holds no kernel modules: remove it and run this again`);
  return { release, dir };
}

/** False when apt could not bring it. */
async function download(wanted: Package): Promise<boolean> {
  let brought = true;
  await cached(entry(wanted), async (temp) => {
    makeDir(temp);
    // Unconfined, as the user apt else downloads as may not enter a home folder.
    const fetched = await output(
      ["apt-get", "download", "--option=APT::Sandbox::User=root", `${wanted.name}=${wanted.version}`],
      { cwd: temp },
    );
    const deb = readdirSync(temp).find((name) => name.endsWith(".deb"));
    brought = fetched.code === 0 && deb !== undefined;
    // What is thrown here keeps the cache from taking it for whole.
    if (!brought || deb === undefined) throw new Error(`apt-get download: ${fetched.stderr}`);
    await run(["dpkg-deb", "--extract", join(temp, deb), temp]);
    await run(["rm", join(temp, deb)]);
  }).catch((error) => {
    if (brought) throw error;
  });
  return brought;
}
