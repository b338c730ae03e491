import assert from "node:assert/strict";
import { existsSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { createLogger } from "./log.ts";
import { CommandError, type CommandResult, type CommandRunner } from "./run.ts";
import { SwapFiles, swapAreas } from "./swap-files.ts";

const FAILED: CommandResult = {
  exitCode: 1,
  signal: 0,
  stdout: new Uint8Array(),
  stderr: new TextEncoder().encode("swapon failed: Invalid argument"),
  timedOut: false,
};

test("areas of /proc/swaps: used bytes, and names with blanks", () => {
  const text =
    "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n/data/a\\040b/swap/1 file 1048572 8 -2\n/dev/sda2 partition 10 0 -3\n";
  assert.deepEqual(swapAreas(text), [
    { path: "/data/a b/swap/1", usedBytes: 8192 },
    { path: "/dev/sda2", usedBytes: 0 },
  ]);
});

test("a host that takes no swap file is asked once, and nothing of the file is left", async () => {
  const dir = mkdtempSync(join(tmpdir(), "aenv-swap-"));
  writeFileSync(join(dir, "7"), "half made by a server that was killed");
  const asked: string[] = [];
  const runner: CommandRunner = {
    run: async (argv) => {
      asked.push(argv[0] ?? "");
      if (argv[0] === "swapon") throw new CommandError(argv, FAILED);
      return { ...FAILED, exitCode: 0 };
    },
  };
  try {
    const logger = createLogger("error", () => {});
    const files = await SwapFiles.open({ dir, runner, logger, fileBytes: 1024 * 1024, maxFiles: 4 });
    assert.equal(existsSync(join(dir, "7")), false);
    const more = Number.MAX_SAFE_INTEGER;
    assert.equal(await files.room(more), false);
    assert.equal(await files.room(more), false);
    assert.deepEqual(asked, ["fallocate", "mkswap", "swapon"]);
    assert.deepEqual(readdirSync(dir), []);
  } finally {
    rmSync(dir, { recursive: true });
  }
});
