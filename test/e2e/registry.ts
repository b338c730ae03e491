import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { goEnv } from "../../scripts/setup/go.ts";
import { root } from "../../scripts/setup/node.js";
import { run } from "../../scripts/setup/run.ts";
import { fromSetUp } from "./server.ts";

/** A registry on this machine with the images `test/big:1`, `test/big:2` (the same layers) and `test/program:1` (native/internal/testregistry). */
export interface TestRegistry extends AsyncDisposable {
  /** `host:port`. */
  readonly address: string;
  /** The same images for those who log in. */
  readonly privateAddress: string;
  readonly user: string;
  readonly password: string;
  /** SHA-256 of files as they must be in `test/big:1`, by path. */
  readonly sha256: Readonly<Record<string, string>>;
  /** What has to be downloaded of `test/big:1`. */
  readonly sizeBytes: number;
}

interface Listening {
  readonly Public: string;
  readonly Private: string;
  readonly User: string;
  readonly Password: string;
  readonly Sha256: Readonly<Record<string, string>>;
  readonly SizeBytes: number;
}

/** Builds and starts one; it ends with this process at the latest. */
export async function startTestRegistry(): Promise<TestRegistry> {
  const dir = mkdtempSync(join(tmpdir(), "aenv-registry-"));
  const program = join(dir, "testregistry");
  const blobs = join(dir, "blobs");
  mkdirSync(blobs);
  const flags = ["-ldflags", "-s -w"];
  const native = join(root, "native");
  await run(["go", "build", "-C", native, ...flags, "-o", program, "./internal/testregistry"], { env: await goEnv() });
  const args = ["-blobs", blobs, "-rootfs", fromSetUp("AENV_TEST_ROOTFS_TAR")];
  const child = spawn(program, args, { stdio: ["pipe", "pipe", "inherit"] });
  const ended = new Promise<void>((resolve) => child.once("close", () => resolve()));
  const dispose = async (): Promise<void> => {
    child.stdin.end();
    await ended;
    rmSync(dir, { recursive: true });
  };
  for await (const line of createInterface({ input: child.stdout })) {
    const said = JSON.parse(line) as Listening;
    return {
      address: said.Public,
      privateAddress: said.Private,
      user: said.User,
      password: said.Password,
      sha256: said.Sha256,
      sizeBytes: said.SizeBytes,
      [Symbol.asyncDispose]: dispose,
    };
  }
  await dispose();
  throw new Error("the test registry did not start; it has said why on standard error");
}
