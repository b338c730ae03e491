import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { test } from "node:test";
import { NestedPasses, nestedInputs } from "./nested-passes.ts";

test("a suite counts as passed for the very same inputs only", async () => {
  const cache = mkdtempSync(join(tmpdir(), "aenv-passes-"));
  const before = process.env.AENV_CACHE_DIR;
  process.env.AENV_CACHE_DIR = cache;
  try {
    const tool = join(cache, "..", `${basename(cache)}-tool`);
    writeFileSync(tool, "one");
    const bin = (name: string, programs: Readonly<Record<string, string>>): string => {
      mkdirSync(join(cache, name));
      for (const [program, bytes] of Object.entries(programs)) writeFileSync(join(cache, name, program), bytes);
      return join(cache, name);
    };
    const env = { AENV_TEST_BIN_DIR: bin("a", { envd: "one", edge: "one" }), AENV_TEST_BUSYBOX: tool };
    const command = { script: "script", options: ["--option"], env };
    const inputs = await nestedInputs(command);
    const inAnyOrder = Object.fromEntries(Object.entries(env).reverse());
    assert.equal(await nestedInputs({ ...command, env: inAnyOrder }), inputs);
    assert.notEqual(await nestedInputs({ ...command, script: "another script" }), inputs);
    assert.notEqual(await nestedInputs({ ...command, options: [] }), inputs);
    const withPrograms = (dir: string) => nestedInputs({ ...command, env: { ...env, AENV_TEST_BIN_DIR: dir } });
    assert.equal(
      await withPrograms(bin("b", { envd: "one", edge: "another" })),
      inputs,
      "nothing starts an edge there",
    );
    const others = await withPrograms(bin("c", { envd: "another", edge: "one" }));
    assert.notEqual(others, inputs);
    writeFileSync(tool, "two");
    assert.notEqual(await nestedInputs(command), inputs, "a program that is not in the cache is another one now");
    rmSync(tool);
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
