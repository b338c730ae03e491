import { baseTar, baseTree } from "./base.ts";
import { binDir, runscPath } from "./go.ts";
import { ownNodePath } from "./node.js";
import { sdkPython } from "./venv.ts";

/** Where tests and benches find what setting up has made. */
export async function testEnv(): Promise<Record<string, string>> {
  return {
    PATH: ownNodePath(),
    AENV_TEST_BIN_DIR: await binDir(),
    AENV_TEST_RUNSC: runscPath(),
    AENV_TEST_ROOTFS_TAR: baseTar(),
    AENV_TEST_ROOTFS: baseTree(),
    AENV_TEST_PYTHON: sdkPython(),
  };
}
