import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { NestedPasses, nestedInputs } from "./nested-passes.ts";

test("a suite counts as passed for the very same inputs only, and the search path is none", async () => {
  const cache = mkdtempSync(join(tmpdir(), "aenv-passes-"));
  const before = process.env.AENV_CACHE_DIR;
  process.env.AENV_CACHE_DIR = cache;
  try {
    const inputs = await nestedInputs({ PATH: "/bin", AENV_TEST_BIN_DIR: "/cache/bin/a" }, "gvisor");
    const same = { PATH: "/usr/bin", AENV_TEST_BIN_DIR: "/cache/bin/a", AENV_TEST_JAILER: "/cache/jailer" };
    assert.equal(await nestedInputs(same, "gvisor"), inputs);
    const others = await nestedInputs({ PATH: "/bin", AENV_TEST_BIN_DIR: "/cache/bin/b" }, "gvisor");
    assert.notEqual(others, inputs);
    const { AENV_TEST_JAILER, ...without } = same;
    assert.notEqual(await nestedInputs(same, "firecracker"), await nestedInputs(without, "firecracker"));
    const passes = new NestedPasses(inputs);
    assert.equal(passes.find("gvisor"), undefined);
    await passes.add("gvisor", "passed in 7 s");
    assert.match(passes.find("gvisor") ?? "", /^passed in 7 s with the very same inputs, on .*npm test -- nested$/);
    assert.equal(passes.find("firecracker"), undefined);
    assert.equal(new NestedPasses(others).find("gvisor"), undefined);
  } finally {
    if (before === undefined) delete process.env.AENV_CACHE_DIR;
    else process.env.AENV_CACHE_DIR = before;
    rmSync(cache, { recursive: true });
  }
});
