import assert from "node:assert/strict";
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { MIB } from "#domain";
import { localRunner } from "#lib/spawn";

const RUNSC = process.env.AENV_TEST_RUNSC ?? "";
const skip = process.getuid?.() === 0 ? false : "needs root";

/** By what each part of a sandbox says of its filter. */
const FOUND = "Loaded precompiled seccomp instructions";
const MISSED = "No precompiled program found";

function flagsIn(dir: string): string[] {
  return [
    `--root=${dir}/root`,
    "--platform=systrap",
    "--network=none",
    "--allow-suid",
    "--net-raw",
    "--ignore-cgroups",
  ];
}

test("sandbox and gofer are given filters that were compiled when runsc was built, not at each start", {
  skip,
}, async () => {
  const dir = mkdtempSync(join(tmpdir(), "aenv-runsc-"));
  try {
    const flags = flagsIn(dir);
    const logging = ["--debug", `--debug-log=${dir}/log/`];
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

test("a file that is named to it is written out while it runs", { skip }, async (t) => {
  const dir = mkdtempSync(join(tmpdir(), "aenv-runsc-"));
  const [named, other] = [join(dir, "named"), join(dir, "other")];
  // Has no place on its disk before it is written there; only some file systems tell.
  const isUnwritten = async (file: string): Promise<boolean> => {
    const { stdout } = await localRunner().run(["/usr/sbin/filefrag", "-v", file]);
    return new TextDecoder().decode(stdout).includes("delalloc");
  };
  try {
    for (const file of [named, other]) writeFileSync(file, Buffer.alloc(MIB, 1));
    if (!(await isUnwritten(other))) return t.skip("NOT TESTED: this file system does not tell what is written");
    assert.equal(await isUnwritten(named), true);
    const env = { AENV_WRITTEN_OUT: named };
    await localRunner().run([RUNSC, ...flagsIn(dir), "do", "/bin/true"], { env });
    assert.deepEqual([await isUnwritten(named), await isUnwritten(other)], [false, true]);
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
});
