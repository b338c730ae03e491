import assert from "node:assert/strict";
import { test } from "node:test";
import { bundle } from "./nested-bundle.ts";

const SOURCE = "src/lib/spawn.test.ts";

test("a bundle hangs on nothing else of the checkout, and its errors are told by their places in the sources", async () => {
  const { script, readable } = await bundle([SOURCE]);
  assert.doesNotMatch(script, /require\("[.#]/);
  const lines = script.split("\n");
  assert.equal(lines[0], '"use strict";');
  const row = lines.findIndex((line) => line.includes("the watcher tells when a process is gone")) + 1;
  assert.ok(row > 0, "the script lacks what is in the source");
  const column = (lines[row - 1] ?? "").indexOf("test") + 1;
  assert.match(
    readable(`    at test (/checkout/a.cjs:${row}:${column})`, "a.cjs"),
    /^ {4}at test \(src\/lib\/spawn\.test\.ts:\d+:\d+\)$/,
  );
  assert.equal(
    readable("at /checkout/b.cjs:1:1 and src/lib/spawn.test.ts:3:1", "a.cjs"),
    "at /checkout/b.cjs:1:1 and src/lib/spawn.test.ts:3:1",
  );
});

test("a module that asks where it lies is refused by name", async () => {
  await assert.rejects(
    bundle(["src/cli/program.ts"]),
    /^Error: src\/cli\/program\.ts: "import\.meta" is not available.*in one script of/,
  );
});
