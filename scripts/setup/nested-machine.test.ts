import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, test } from "node:test";
import { type NestedEnd, runEmulator } from "./nested-machine.ts";

let temp = "";
let lines: string[] = [];
beforeEach(() => {
  temp = mkdtempSync(join(tmpdir(), "aenv-nested-test-"));
  lines = [];
});
afterEach(() => rmSync(temp, { recursive: true }));

test("the exit code is what the tests said last, and all they said before is passed on", async () => {
  const end = await run('port.write("one\\ntwo\\nthreeNESTED-EXIT 7\\n")');
  assert.deepEqual(end, { how: "exited", code: 7 });
  assert.deepEqual(lines, ["one", "two", "three"]);
});

test("a machine that ends without a word of the tests is broken, with the end of what its kernel said", async () => {
  const end = await run('console.log("[1.0] first"); console.log("[2.0] last"); process.exit(0)');
  assert.deepEqual(end, {
    how: "broke",
    why: "it ended before the tests did (0)",
    kernel: ["[1.0] first", "[2.0] last"],
  });
});

test("a kernel that fails breaks the machine, also when that goes on", async () => {
  const end = await run(
    'console.log("[3.0] BUG: scheduling while atomic"); console.log("RIP"); setInterval(() => {}, 1e6)',
  );
  assert.equal(end.how, "broke");
  assert.deepEqual("kernel" in end && end.kernel, ["[3.0] BUG: scheduling while atomic", "RIP"]);
});

test("a machine that goes on for too long is ended", async () => {
  const end = await run("console.log(process.pid); setInterval(() => {}, 1e6)", { timeoutMs: 4000 });
  assert.equal(end.how, "timed out");
  const pid = Number("kernel" in end && end.kernel[0]);
  assert.throws(() => process.kill(pid, 0), { code: "ESRCH" });
});

test("a machine that says nothing and does nothing is broken, long before its time is over", async () => {
  const end = await run('console.log("[4.0] last words"); setInterval(() => {}, 1e6)', { stillMs: 1000 });
  assert.equal(end.how, "broke");
  assert.match("why" in end ? end.why : "", /^it said nothing and used no processor for \d+ s$/);
  assert.deepEqual("kernel" in end && end.kernel, ["[4.0] last words"]);
});

test("a machine that works, or only speaks, is not still", async () => {
  const speaks =
    'let n = 0; setInterval(() => { if ((n += 1) > 25) port.write("NESTED-EXIT 3\\n"); else console.log(n); }, 100)';
  const works = 'const until = Date.now() + 2500; while (Date.now() < until); port.write("NESTED-EXIT 3\\n")';
  for (const script of [speaks, works])
    assert.deepEqual(await run(script, { stillMs: 1000 }), { how: "exited", code: 3 }, script);
});

/** Runs JavaScript in the place of the emulator, with `port` connected. */
async function run(
  script: string,
  { timeoutMs = 30_000, stillMs }: { readonly timeoutMs?: number; readonly stillMs?: number } = {},
): Promise<NestedEnd> {
  const port = join(temp, "port");
  const connected = `const port = require("node:net").connect(${JSON.stringify(port)}, () => { ${script} });`;
  const { end } = await runEmulator([process.execPath, "-e", connected], port, {
    timeoutMs,
    ...(stillMs !== undefined && { stillMs }),
    onLine: (line) => lines.push(line),
  });
  return end;
}
