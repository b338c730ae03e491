import { createHash } from "node:crypto";
import { existsSync, readdirSync, readFileSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";
import { aptOptions, baseRecipeHash, baseTree } from "./base.ts";
import { cacheDir, cached, makeDir, prune } from "./cache.js";
import { bootImage, type CloudKernel, fetchCloudKernel, findCloudKernel, withoutSignature } from "./cloud-kernel.ts";
import { type CpioEntry, cpioArchive } from "./cpio.ts";
import { initPath, moduleEntries, NEEDED_MODULES, smallGuestInitrd } from "./guest-kernel.ts";
import { hashTree } from "./hash.ts";
import { debianSources } from "./mirrors.ts";
import { emulatorDir, makeEmulator } from "./nested-emulator.ts";
import { root } from "./node.js";
import { packagesStepFor } from "./packages.ts";
import { run } from "./run.ts";
import type { Step } from "./steps.ts";

/**
 * The emulator, and what the nested machine boots: a kernel, an initramfs, and a data disk with the image of the template `base` and
 * the few things its system needs beside it. Made once, used by all runs, never written to.
 */
export interface NestedSystem {
  /** The folder it is unpacked in. */
  readonly emulator: string;
  readonly kernel: string;
  readonly initramfs: string;
  readonly dataDisk: string;
  /** An initrd for the virtual machines inside, with the modules alone that they need to start: the others cost each of them seconds. */
  readonly guestInitrd: string;
}

/** Of the kernel, beside what is built in: disks and ports of the machine, file systems, KVM, what slots are made of. */
const MODULES = [
  ...["virtio_pci", "virtio_blk", "virtio_console", "virtio_rng"],
  ...["xfs", "ext4", "erofs", "overlay", "fuse", "loop"],
  ...["kvm_amd", "tun", "veth", "bridge"],
  ...["nf_tables", "nf_conntrack", "nf_conntrack_netlink", "nf_nat", "nfnetlink_cttimeout", "nft_chain_nat", "nft_ct"],
  ...[
    "nft_connlimit",
    "nft_fib_inet",
    "nft_limit",
    "nft_masq",
    "nft_nat",
    "nft_objref",
    "nft_redir",
    "nft_reject_inet",
  ],
  ...["sch_ingress", "cls_u32", "act_mirred"],
];
const PACKAGES: Readonly<Record<string, string>> = {
  "busybox-static": "busybox",
  e2fsprogs: "mke2fs",
  "erofs-utils": "mkfs.erofs",
  xfsprogs: "mkfs.xfs",
};
const SUITE = "bookworm";
/** Of the file system, not of what is on it. */
const DATA_DISK_BYTES = 24 * 1024 ** 3;
const FORMAT = "2";
/** To check signatures takes an emulated processor seconds. */
const MODULES_ARE = "unsigned";
const INIT = join(root, "test", "nested", "initramfs.sh");
const BUSYBOX = "/bin/busybox";

const withoutIt = "NOT TESTED: the nested machine.";
const packagesStep: Step = { ...packagesStepFor("Debian packages for the nested machine", 20, PACKAGES), withoutIt };
const systemStep: Step = {
  title: "nested machine",
  estimateS: 35,
  withoutIt,

  async pending() {
    return (await nestedSystem()) === undefined ? "make its emulator and disks, from Debian packages" : undefined;
  },

  async run() {
    const kernel = await fetchCloudKernel();
    await cached(initramfs(kernel), (temp) => writeFileSync(temp, archive(kernel)));
    await cached(dataDisk(), makeDataDisk);
    await makeEmulator();
    const init = readFileSync(await initPath());
    await cached(smallInitrd(kernel, init), (temp) => writeFileSync(temp, smallGuestInitrd(kernel, init)));
    prune(join(cacheDir(), "nested-guest"), 2);
    prune(join(cacheDir(), "nested-initramfs"), 2);
    prune(join(cacheDir(), "nested-data"), 1);
  },
};

/** What the tests in the nested machine need beside what all tests do. What fails here costs those tests alone. */
export const nestedSteps: readonly Step[] = [packagesStep, systemStep];

/** Why there can be no nested machine; undefined when there can be. */
export async function missingNested(): Promise<string | undefined> {
  if (process.arch !== "x64") return `it emulates an AMD processor on x64 alone, and this is ${process.arch}`;
  for (const step of nestedSteps) {
    const undone = await step.pending();
    if (undone !== undefined) return `setting up could not ${undone}`;
  }
  return undefined;
}

/** undefined: not made yet. */
export async function nestedSystem(): Promise<NestedSystem | undefined> {
  const kernel = await findCloudKernel();
  if (kernel === undefined) return undefined;
  const init = await initPath();
  if (!existsSync(init)) return undefined;
  const system = {
    emulator: emulatorDir(),
    kernel: bootImage(kernel),
    initramfs: initramfs(kernel),
    dataDisk: dataDisk(),
    guestInitrd: smallInitrd(kernel, readFileSync(init)),
  };
  return Object.values(system).every((path) => existsSync(path)) ? system : undefined;
}

function initramfs(kernel: CloudKernel): string {
  const salt = [basename(kernel.dir), FORMAT, MODULES_ARE, ...MODULES];
  return join(
    cacheDir(),
    "nested-initramfs",
    hashTree(join(INIT, ".."), (path) => path === basename(INIT), salt),
  );
}

function smallInitrd(kernel: CloudKernel, init: Buffer): string {
  const facts = JSON.stringify([basename(kernel.dir), MODULES_ARE, NEEDED_MODULES]);
  return join(cacheDir(), "nested-guest", createHash("sha256").update(facts).update(init).digest("hex").slice(0, 16));
}

function archive(kernel: CloudKernel): Buffer {
  const program = (path: string, file: string): CpioEntry => ({
    path,
    kind: "file",
    mode: 0o755,
    data: readFileSync(file),
  });
  return cpioArchive([
    program("init", INIT),
    { path: "bin", kind: "directory" },
    program("bin/busybox", BUSYBOX),
    { path: "modules", kind: "directory" },
    ...moduleEntries(kernel, MODULES, withoutSignature),
    ...["proc", "sys", "dev"].map((path): CpioEntry => ({ path, kind: "directory" })),
    { path: "dev/console", kind: "device", mode: 0o600, major: 5, minor: 1 },
  ]);
}

function dataDisk(): string {
  return join(cacheDir(), "nested-data", `${baseRecipeHash()}-node-${process.versions.node}-${FORMAT}`);
}

async function makeDataDisk(path: string): Promise<void> {
  const work = `${path}-work`;
  try {
    makeDir(work);
    const image = join(work, "image.erofs");
    await run(["mkfs.erofs", "--quiet", "-T0", image, baseTree()]);
    const files = await systemFiles(join(work, "packages"));
    const prototype = [
      "/",
      "0 0",
      "d--755 0 0",
      `image.erofs ---644 0 0 ${image}`,
      ...folder("system", files),
      "$",
      "",
    ];
    writeFileSync(join(work, "prototype"), prototype.join("\n"));
    writeFileSync(path, "");
    truncateSync(path, DATA_DISK_BYTES);
    await run(["mkfs.xfs", "-q", "-f", "-p", join(work, "prototype"), path]);
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
}

/** Path in the system → file: Node, and nft of the suite that the image is of, whatever this host is. */
async function systemFiles(dir: string): Promise<ReadonlyMap<string, string>> {
  const options = ["--variant=extract", "--mode=root", "--include=nftables", ...(await aptOptions())];
  await run(["mmdebstrap", ...options, SUITE, dir, ...debianSources(SUITE)], { env: { TMPDIR: "/var/tmp" } });
  const lib = "usr/lib/x86_64-linux-gnu";
  const libraries = readdirSync(join(dir, lib)).filter((name) => /^lib(?:nftables|nftnl)\.so\.\d+$/.test(name));
  const files = ["usr/sbin/nft", ...libraries.map((name) => `${lib}/${name}`)];
  return new Map([...files.map((file) => [file, join(dir, file)] as const), ["opt/node/bin/node", process.execPath]]);
}

/** A folder in the language of mkfs.xfs, from the paths in it and the files they are copied from. */
function folder(name: string, files: ReadonlyMap<string, string>): string[] {
  const lines = [`${name} d--755 0 0`];
  const inside = Map.groupBy(files, ([path]) => path.split("/")[0] ?? "");
  for (const [entry, found] of inside) {
    const file = files.get(entry);
    const below = found.map(([path, source]) => [path.slice(entry.length + 1), source] as const);
    lines.push(...(file === undefined ? folder(entry, new Map(below)) : [`${entry} ---755 0 0 ${file}`]));
  }
  return [...lines, "$"];
}
