import { createHash } from "node:crypto";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";
import { cacheDir, cached, makeDir, prune } from "./cache.js";
import {
  bootImage,
  type CloudKernel,
  fetchCloudKernel,
  findCloudKernel,
  modulesInOrder,
  withoutSignature,
} from "./cloud-kernel.ts";
import { type CpioEntry, cpioArchive } from "./cpio.ts";
import { binDir } from "./go.ts";
import { unpackKernel } from "./kernel-image.ts";
import { osRelease } from "./packages.ts";
import type { Step } from "./steps.ts";

/*
 * What a virtual machine boots: Debian's kernel for clouds, out of its package, and an initrd with our own init (guestinit).
 *
 * Another kernel takes, built in or as modules: virtio over MMIO with virtio_blk and virtio_net, ext4, EROFS, overlayfs, tmpfs,
 * devtmpfs, cgroup v2, and a serial console; as a file, an uncompressed ELF. An initrd for it is a cpio archive (newc) with
 *
 *   /init              the program guestinit
 *   /dev/console       character device 5:1
 *   /dev/null          character device 1:3
 *   /modules/*.ko      uncompressed, loaded in the order of their names; none for a kernel that has everything built in
 *
 * guestinit is told everything else on the kernel's command line.
 */

/** What guestinit itself needs. */
export const NEEDED_MODULES = ["virtio_mmio", "virtio_blk", "virtio_net", "virtio_rng", "erofs", "overlay"];
/** What programs inside may ask for; the kernel could not load it later, as images bring no modules for it. */
const USEFUL = ["fuse", "tun", "loop"];
/** The same, for containers and firewalls inside (docker, iptables, nft). */
const CONTAINERS = [
  ...["veth", "bridge", "nft_compat", "nft_chain_nat", "nft_ct", "nft_masq", "nft_nat", "nft_redir", "nft_reject_inet"],
  ...["ipt_REJECT", "xt_addrtype", "xt_comment", "xt_conntrack", "xt_mark", "xt_MASQUERADE", "xt_multiport", "xt_nat"],
  ...["xt_owner", "xt_REDIRECT", "xt_tcpudp"],
];
const MODULES = [...NEEDED_MODULES, ...USEFUL, ...CONTAINERS];
const FORMAT = "1";
const kept = join(cacheDir(), "guest");

/** Of Debian alone: elsewhere there is no such package, and the configuration has to name a kernel. */
const isDebian = osRelease().ID === "debian";

/** vmlinux, initrd and version (the kernel package's, for people) in one folder of the cache. */
export const guestKernelStep: Step = {
  title: "guest kernel",
  estimateS: 15,

  async pending() {
    return isDebian && (await guestKernelDir()) === undefined
      ? "download Debian's kernel for clouds, make an initrd"
      : undefined;
  },

  async run() {
    const kernel = await fetchCloudKernel();
    const init = readFileSync(await initPath());
    await cached(entryDir(kernel, init), (temp) => {
      makeDir(temp);
      writeFileSync(join(temp, "vmlinux"), elf(kernel));
      writeFileSync(join(temp, "initrd"), guestInitrd(kernel, init));
      writeFileSync(join(temp, "version"), `${basename(kernel.dir)}\n`);
    });
    prune(kept, 3);
  },
};

/** The folder with vmlinux, initrd and version for this checkout; undefined when it is not made yet. */
export async function guestKernelDir(): Promise<string | undefined> {
  const kernel = await findCloudKernel();
  const init = await initPath();
  if (kernel === undefined || !existsSync(init)) return undefined;
  const dir = entryDir(kernel, readFileSync(init));
  return existsSync(dir) ? dir : undefined;
}

/** The program that is `/init` in an initrd. */
export async function initPath(): Promise<string> {
  return join(await binDir(), "guestinit");
}

function entryDir(kernel: CloudKernel, init: Buffer): string {
  const facts = JSON.stringify([FORMAT, basename(kernel.dir), MODULES]);
  return join(kept, createHash("sha256").update(facts).update(init).digest("hex").slice(0, 16));
}

function elf(kernel: CloudKernel): Buffer {
  const path = bootImage(kernel);
  try {
    return unpackKernel(readFileSync(path));
  } catch (error) {
    throw new Error(`${path}: ${(error as Error).message}`, { cause: error });
  }
}

export function guestInitrd(kernel: CloudKernel, init: Buffer): Buffer {
  return initrd(init, moduleEntries(kernel, MODULES));
}

/** One that an emulated machine is through with sooner: the modules alone that no guest starts without, as nobody has signed them. */
export function smallGuestInitrd(kernel: CloudKernel, init: Buffer): Buffer {
  return initrd(init, moduleEntries(kernel, NEEDED_MODULES, withoutSignature));
}

/** Modules and those that they need, to be loaded in the order of their names. `prepare`: what becomes of each. */
export function moduleEntries(
  kernel: CloudKernel,
  names: readonly string[],
  prepare = (module: Buffer): Buffer => module,
): CpioEntry[] {
  return modulesInOrder(kernel, names).map((file, index) => {
    const path = `modules/${String(index).padStart(3, "0")}-${basename(file)}`;
    return { path, kind: "file", mode: 0o644, data: prepare(readFileSync(file)) };
  });
}

function initrd(init: Buffer, modules: readonly CpioEntry[]): Buffer {
  return cpioArchive([
    { path: "init", kind: "file", mode: 0o755, data: init },
    { path: "dev", kind: "directory" },
    { path: "dev/console", kind: "device", mode: 0o600, major: 5, minor: 1 },
    { path: "dev/null", kind: "device", mode: 0o666, major: 1, minor: 3 },
    { path: "modules", kind: "directory" },
    ...modules,
  ]);
}
