import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after, test } from "node:test";
import { MIB } from "#domain";
import { createLogger } from "#lib/log";
import type { CommandRunner } from "#lib/run";
import { localRunner } from "#lib/spawn";
import { removeSwapFiles, SwapFiles, swapAreas } from "#lib/swap-files";
import { openCgroups } from "../../src/driver/cgroup/index.ts";

const HELD_BYTES = 24 * MIB;
const FILE_BYTES = 64 * MIB;

const dir = mkdtempSync(join(tmpdir(), "aenv-swap-"));
const cgroups = openCgroups(`/aenv-swap-${process.pid}`);
/** Whatever swap this host has besides, ours is used first. */
const runner: CommandRunner = {
  run: (argv, options) =>
    localRunner().run(argv[0] === "swapon" ? ["swapon", "--priority", "100", ...argv.slice(1)] : argv, options),
};
const ours = () => swapAreas(readFileSync("/proc/swaps", "utf8")).filter(({ path }) => path.startsWith(`${dir}/`));

after(async () => {
  await cgroups.remove("held");
  cgroups.removeParent();
  await removeSwapFiles(dir, localRunner());
  assert.deepEqual(ours(), []);
  rmSync(dir, { recursive: true, force: true });
});

test("memory of a group goes to a swap file made for it, and comes back byte by byte", async () => {
  const logger = createLogger("error", (line) => process.stderr.write(`${line}\n`));
  const options = { dir, runner, logger, fileBytes: FILE_BYTES, maxFiles: 40 };
  const files = await SwapFiles.open(options);
  const free = Number(/SwapFree:\s+(\d+)/.exec(readFileSync("/proc/meminfo", "utf8"))?.[1]) * 1024;
  assert.equal(await files.room(free + 1), true);
  assert.deepEqual(
    ours().map(({ usedBytes }) => usedBytes),
    [0],
  );

  await cgroups.create("held", { vcpus: 1, memoryBytes: 256 * MIB, diskBytes: 0, pidsMax: 64 });
  const program = `
import hashlib, os, sys
held = os.urandom(${HELD_BYTES})
before = hashlib.sha256(held).hexdigest()
print("held", flush=True)
sys.stdin.readline()
print(before == hashlib.sha256(held).hexdigest(), flush=True)
sys.stdin.readline()`;
  const child = spawn("python3", ["-c", `import os, sys; sys.stdin.readline()\n${program}`], {
    stdio: ["pipe", "pipe", "inherit"],
  });
  try {
    cgroups.join("held", child.pid ?? 0);
    const said = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
    const next = async (): Promise<string> => String((await said.next()).value);
    child.stdin.write("\n");
    assert.equal(await next(), "held");
    const heldBytes = cgroups.memory("held")?.usedBytes ?? 0;
    assert.ok(heldBytes >= HELD_BYTES);
    const gone = await cgroups.reclaim("held");
    assert.ok(gone >= HELD_BYTES * 0.9, `${gone} bytes went of ${heldBytes}`);

    // A server that comes after this one takes the file up, and takes it away only when it is empty.
    const later = await SwapFiles.open(options);
    const path = ours()[0]?.path ?? "";
    await later.trim();
    assert.ok(existsSync(path));
    child.stdin.write("\n");
    assert.equal(await next(), "True");
  } finally {
    child.kill("SIGKILL");
    await once(child, "exit");
  }
  const last = await SwapFiles.open(options);
  await last.trim();
  assert.deepEqual(ours(), []);
});
