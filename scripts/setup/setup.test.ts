import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readdirSync, rmSync, utimesSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, test } from "node:test";
import { cached, prune, withLock } from "./cache.js";
import { hashTree } from "./hash.ts";
import { debianSources } from "./mirrors.ts";
import { describePlan, planSteps, runSteps, type Step } from "./steps.ts";

let temp = "";
beforeEach(() => {
  temp = mkdtempSync(join(tmpdir(), "aenv-setup-test-"));
});
afterEach(() => rmSync(temp, { recursive: true }));

test("a cache entry is made once, and not at all when making fails", async () => {
  const entry = join(temp, "kind", "key");
  await assert.rejects(
    cached(entry, (path) => {
      mkdirSync(path);
      throw new Error("half-way");
    }),
    /half-way/,
  );
  assert.deepEqual(readdirSync(join(temp, "kind")), []);
  let made = 0;
  const make = (path: string): void => {
    made += 1;
    mkdirSync(path);
  };
  assert.equal(await cached(entry, make), entry);
  assert.equal(await cached(entry, make), entry);
  assert.equal(made, 1);
  assert.deepEqual(readdirSync(join(temp, "kind")), ["key"]);
});

test("pruning keeps the entries used last", () => {
  for (const [index, name] of ["old", "middle", "new"].entries()) {
    mkdirSync(join(temp, name));
    utimesSync(join(temp, name), index + 1, index + 1);
  }
  prune(temp, 2);
  assert.deepEqual(readdirSync(temp).sort(), ["middle", "new"]);
  prune(join(temp, "absent"), 2);
});

test("the lock lets one in at a time and does not outlive who held it", async () => {
  const lock = join(temp, "lock");
  // Another process takes the lock and is killed while it holds it.
  const module = new URL("./cache.js", import.meta.url).href;
  const code = `import { withLock } from ${JSON.stringify(module)};
    await withLock(${JSON.stringify(lock)}, () => new Promise(() => { process.stdout.write("held"); setInterval(() => {}, 1e6); }));`;
  const other = spawn(process.execPath, ["--input-type=module", "-e", code], { stdio: ["ignore", "pipe", "inherit"] });
  await new Promise((resolve) => other.stdout.once("data", resolve));
  let entered = false;
  const ours = withLock(lock, () => {
    entered = true;
    return Promise.resolve();
  });
  await new Promise((resolve) => setTimeout(resolve, 100));
  assert.equal(entered, false);
  other.kill("SIGKILL");
  await ours;
  assert.equal(entered, true);
});

test("a tree's hash follows names, bytes, modes and salt of what is included, and nothing else", () => {
  const write = (name: string, text: string, mode = 0o644): void => writeFileSync(join(temp, name), text, { mode });
  const hash = (salt: string[] = []): string => hashTree(temp, (path) => path.endsWith(".go"), salt);
  write("a.go", "package a");
  const first = hash();
  write("notes.md", "not included");
  mkdirSync(join(temp, "node_modules"));
  write("node_modules/b.go", "left out");
  assert.equal(hash(), first);
  assert.notEqual(hash(["go1.27"]), first);
  write("a.go", "package b");
  assert.notEqual(hash(), first);
  write("a.go", "package a");
  assert.equal(hash(), first);
  write("c.go", "", 0o755);
  assert.notEqual(hash(), first);
});

test("the template is made from the mirrors this Debian uses itself", () => {
  const os = { ID: "debian", VERSION_CODENAME: "trixie" };
  mkdirSync(join(temp, "sources.list.d"));
  assert.deepEqual(debianSources("bookworm", temp, os), []);

  writeFileSync(
    join(temp, "sources.list"),
    "# deb http://old.test/debian trixie main\ndeb [arch=amd64] http://one.test/debian trixie main\n",
  );
  assert.deepEqual(debianSources("bookworm", temp, os), [
    "deb http://one.test/debian bookworm main",
    "deb http://one.test/debian bookworm-updates main",
  ]);

  rmSync(join(temp, "sources.list"));
  const stanzas = [
    "Types: deb\n# URIs: http://no.test/\nURIs: http://main.test/debian\nSuites: trixie trixie-updates\nComponents: main",
    "Types: deb-src\nURIs: http://src.test/debian\nSuites: trixie-security",
    "Types: deb\nURIs: http://safe.test/security\nSuites: trixie-security\nComponents: main\n",
  ];
  writeFileSync(join(temp, "sources.list.d", "debian.sources"), stanzas.join("\n\n"));
  assert.deepEqual(debianSources("bookworm", temp, os), [
    "deb http://main.test/debian bookworm main",
    "deb http://main.test/debian bookworm-updates main",
    "deb http://safe.test/security bookworm-security main",
  ]);
  assert.deepEqual(debianSources("bookworm", temp, { ID: "ubuntu", VERSION_CODENAME: "trixie" }), []);
});

test("the plan says what is to do and only that is done", async () => {
  const done: string[] = [];
  const step = (title: string, action: string | undefined): Step => ({
    title,
    estimateS: 60,
    pending: () => Promise.resolve(action),
    run: () => {
      done.push(title);
      return Promise.resolve();
    },
  });
  const planned = await planSteps([step("Go", undefined), step("runsc", "build")]);
  assert.match(describePlan(planned), /ready {2}Go\n {2}to do {2}runsc: build \(about 60 s\)\n {2}About 60 s/);
  await runSteps(planned);
  assert.deepEqual(done, ["runsc"]);
});

test("a step that fails ends the run, unless the rest can do without it", async () => {
  const failing: Step = {
    title: "something far away",
    estimateS: 1,
    pending: () => Promise.resolve("fetch"),
    run: () => Promise.reject(new Error("no such host")),
  };
  await assert.rejects(runSteps(await planSteps([failing])), /no such host/);
  await runSteps(await planSteps([{ ...failing, withoutIt: "So it is left out." }]));
});
