import { copyFileSync, mkdirSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { FirecrackerBench } from "../host/firecracker/bench.ts";
import { fromEnvironment } from "../host/machines/host.ts";

const FOLDERS = ["bin", "sbin", "etc", "proc", "sys", "dev", "run", "tmp", "root", ".aenv"];
const PROGRAMS = ["sh", "cat", "tr", "kill", "sleep", "echo", "readlink", "reboot", "mount", "timeout", "bash"];
const FILES = {
  "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
  "etc/group": "root:x:0:\n",
  "etc/inittab":
    "::sysinit:/bin/echo system starts\n::respawn:/bin/sh -c 'echo $$ >/run/service.pid; exec sleep 86400'\n",
};

/** The flat file of a small image whose command is an init of its own (BusyBox's), which keeps a service. */
export async function initImage(bench: FirecrackerBench): Promise<string> {
  const tree = join(bench.host.dir, "init-image");
  makeTree(tree);
  const file = `${tree}.erofs`;
  await bench.blobd.store.files.packDirectory(tree, file);
  return file;
}

/** The root file system of the image. */
export function makeTree(tree: string): void {
  for (const name of FOLDERS) mkdirSync(join(tree, name), { recursive: true });
  copyFileSync(fromEnvironment("AENV_TEST_BUSYBOX"), join(tree, "bin/busybox"));
  for (const name of PROGRAMS) symlinkSync("busybox", join(tree, "bin", name));
  symlinkSync("../bin/busybox", join(tree, "sbin/init"));
  for (const [path, text] of Object.entries(FILES)) writeFileSync(join(tree, path), text);
}
