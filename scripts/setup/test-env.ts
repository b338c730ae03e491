import { join } from "node:path";
import { baseTar, baseTree } from "./base.ts";
import { testFirecracker } from "./firecracker-wheel.ts";
import { binDir, runscPath } from "./go.ts";
import { guestKernelDir } from "./guest-kernel.ts";
import { ownNodePath } from "./node.js";
import { sdkPython } from "./venv.ts";

/** Where tests and benches find what setting up has made. */
export async function testEnv(): Promise<Record<string, string>> {
  const { firecracker, jailer } = testFirecracker() ?? {};
  return {
    PATH: ownNodePath(),
    AENV_TEST_BIN_DIR: await binDir(),
    AENV_TEST_RUNSC: await runscPath(),
    AENV_TEST_ROOTFS_TAR: baseTar(),
    AENV_TEST_ROOTFS: baseTree(),
    AENV_TEST_PYTHON: sdkPython(),
    ...(await guestKernelEnv()),
    AENV_TEST_BUSYBOX: "/bin/busybox",
    ...(firecracker === undefined ? {} : { AENV_TEST_FIRECRACKER: firecracker }),
    ...(jailer === undefined ? {} : { AENV_TEST_JAILER: jailer }),
  };
}

/** Where tests that boot a virtual machine find what it boots; nothing where setting up does not make that. */
export async function guestKernelEnv(): Promise<Record<string, string>> {
  const dir = await guestKernelDir();
  if (dir === undefined) return {};
  return { AENV_TEST_GUEST_KERNEL: join(dir, "vmlinux"), AENV_TEST_GUEST_INITRD: join(dir, "initrd") };
}
