import { chmodSync, existsSync, renameSync, rmSync } from "node:fs";
import { join } from "node:path";
import { examineKvm, type Virtualization } from "../../src/driver/index.ts";
import { cacheDir, cached, makeDir, prune } from "./cache.js";
import { download, type Patience, sha256Of } from "./download.ts";
import { guestKernelDir } from "./guest-kernel.ts";
import { run } from "./run.ts";
import type { Note, Step } from "./steps.ts";

const VERSION = "1.12.1";
const RELEASES = "https://github.com/firecracker-microvm/firecracker/releases/download";
const PROGRAMS = ["firecracker", "jailer"] as const;

/** Of upstream's archive for each machine it is released for. */
const SHA256 = {
  x86_64: "0a75e67ef6e4c540a2cf248b06822b0be9820cbba9fe19f9e0321200fe76ff6b",
  aarch64: "785bc9d30756bff0c03fb275baac957363f9ba98f78a2272405dcb6929ebb953",
} as const;

/** Fields of src/config.ts that the choice of the driver turns on, as far as an operator has set them. */
export interface VirtualizationConfig {
  readonly virtualization?: Virtualization;
  readonly firecrackerPath?: string;
  readonly jailerPath?: string;
  readonly pvmKernelPath?: string | null;
}

/** Firecracker and its jailer as upstream released them, for servers. */
export const firecrackerStep: Step = {
  title: `Firecracker ${VERSION}`,
  estimateS: 10,

  pending() {
    return Promise.resolve(existsSync(releaseDir()) ? undefined : `fetch the release from ${new URL(baseUrl()).host}`);
  },

  async run(note) {
    const machine = process.arch === "arm64" ? "aarch64" : "x86_64";
    const release = { version: VERSION, machine, sha256: SHA256[machine], baseUrl: baseUrl() };
    await fetchRelease(release, { dir: releaseDir(), downloads: join(cacheDir(), "download"), note });
    prune(join(cacheDir(), "firecracker"), 3);
  },
};

/** Fields of src/config.ts that have to do with the choice of the driver, as far as an operator or these scripts set them. */
export interface VirtualizationConfig {
  readonly virtualization?: Virtualization;
  readonly firecrackerPath?: string;
  readonly jailerPath?: string;
  readonly guestKernelPath?: string;
  readonly guestInitrdPath?: string;
  readonly pvmKernelPath?: string | null;
}

/** True when a server with this configuration runs Firecracker here once all is set up, as far as files tell. */
export async function wantsFirecracker({
  virtualization: wanted = "auto",
  pvmKernelPath = null,
}: VirtualizationConfig): Promise<boolean> {
  if (wanted !== "auto") return wanted !== "gvisor";
  const { state } = await examineKvm();
  return state === "hardware" || (state === "pvm" && pvmKernelPath !== null);
}

/** True when the operator has not brought a Firecracker of his own. */
export function usesOurFirecracker({ firecrackerPath }: VirtualizationConfig): boolean {
  return !isOthers(firecrackerPath);
}

/** Where a server finds Firecracker and the parts of its machines: what these scripts bring, unless the operator brought others. */
export async function firecrackerPaths(config: VirtualizationConfig): Promise<VirtualizationConfig> {
  if (!(await wantsFirecracker(config))) return {};
  const guest = await guestKernelDir();
  const ours = {
    firecrackerPath: join(releaseDir(), "firecracker"),
    jailerPath: join(releaseDir(), "jailer"),
    ...(guest !== undefined && { guestKernelPath: join(guest, "vmlinux"), guestInitrdPath: join(guest, "initrd") }),
  };
  const fields = Object.keys(ours) as (keyof typeof ours)[];
  return {
    ...ours,
    ...Object.fromEntries(fields.flatMap((field) => (isOthers(config[field]) ? [[field, config[field]]] : []))),
  };
}

function isOthers(path: string | undefined): boolean {
  return path !== undefined && !path.startsWith(`${cacheDir()}/`);
}

export interface Release {
  readonly version: string;
  /** As upstream names it: x86_64, aarch64. */
  readonly machine: string;
  /** Of the archive. */
  readonly sha256: string;
  /** The address that holds a folder for each version. */
  readonly baseUrl: string;
}

export interface Destination {
  /** The folder to make, with the two programs; whole or not at all. */
  readonly dir: string;
  /** Where the archive lies meanwhile. One that somebody has put there is taken instead of being fetched. */
  readonly downloads: string;
  readonly note?: Note;
  readonly patience?: Patience;
}

/** @throws Error that names the address, what was wrong, and where to put the archive by hand */
export async function fetchRelease(release: Release, destination: Destination): Promise<void> {
  const { version, machine, sha256 } = release;
  const { dir, downloads, note, patience } = destination;
  const name = `firecracker-v${version}-${machine}.tgz`;
  const archive = join(downloads, name);
  if (existsSync(archive)) {
    const found = await sha256Of(archive);
    if (found !== sha256)
      throw new Error(
        `${archive} is not the archive of that release: its sha256 is ${found}, not ${sha256}. Remove it.`,
      );
  } else {
    const url = `${release.baseUrl.replace(/\/+$/, "")}/v${version}/${name}`;
    const onProgress = (doneBytes: number, totalBytes?: number): void => note?.(amount(doneBytes, totalBytes));
    try {
      await download({ url, sha256, path: archive, onProgress, ...(patience === undefined ? {} : { patience }) });
    } catch (error) {
      throw new Error(
        `${url} cannot be had: ${error instanceof Error ? error.message : String(error)}.
Put that file at ${archive}, or name a mirror in AENV_FIRECRACKER_URL (the address that holds v${version}/), then run this again.`,
        { cause: error },
      );
    }
  }
  await unpack(archive, dir, `v${version}-${machine}`);
  rmSync(archive);
}

async function unpack(archive: string, dir: string, suffix: string): Promise<void> {
  await cached(dir, async (temp) => {
    makeDir(temp);
    const members = PROGRAMS.map((program) => `release-${suffix}/${program}-${suffix}`);
    const options = ["--gzip", "--no-same-owner", "--strip-components=1", "--directory", temp];
    await run(["tar", "--extract", "--file", archive, ...options, ...members]);
    for (const program of PROGRAMS) {
      renameSync(join(temp, `${program}-${suffix}`), join(temp, program));
      chmodSync(join(temp, program), 0o755);
    }
  });
}

function releaseDir(): string {
  return join(cacheDir(), "firecracker", VERSION);
}

function baseUrl(): string {
  return process.env.AENV_FIRECRACKER_URL || RELEASES;
}

function amount(doneBytes: number, totalBytes: number | undefined): string {
  const mib = (bytes: number): string => (bytes / 2 ** 20).toFixed(1);
  return totalBytes === undefined ? `${mib(doneBytes)} MiB` : `${mib(doneBytes)} of ${mib(totalBytes)} MiB`;
}
