import assert from "node:assert/strict";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { localRunner } from "#lib/spawn";

const RUNSC = process.env.AENV_TEST_RUNSC ?? "";
const skip = process.getuid?.() === 0 ? false : "needs root";

/** By what each part of a sandbox says of its filter. */
const FOUND = "Loaded precompiled seccomp instructions";
const MISSED = "No precompiled program found";

test("sandbox and gofer are given filters that were compiled when runsc was built, not at each start", {
  skip,
}, async () => {
  const dir = mkdtempSync(join(tmpdir(), "aenv-runsc-"));
  try {
    const flags = [`--root=${dir}/root`, "--platform=systrap", "--network=none", "--allow-suid", "--net-raw"];
    const logging = ["--ignore-cgroups", "--debug", `--debug-log=${dir}/log/`];
    await localRunner().run([RUNSC, ...flags, ...logging, "do", "/bin/true"]);
    for (const part of ["boot", "gofer"]) {
      const name = readdirSync(join(dir, "log")).find((file) => file.endsWith(`.${part}.txt`));
      assert.ok(name !== undefined, `no log of ${part}`);
      const said = readFileSync(join(dir, "log", name), "utf8");
      assert.ok(said.includes(FOUND) && !said.includes(MISSED), `${part} compiles its filter itself`);
    }
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
});
