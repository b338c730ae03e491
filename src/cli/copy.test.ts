import assert from "node:assert/strict";
import { execFile, execFileSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import {
  chmodSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  statSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, beforeEach, describe, it } from "node:test";
import { setImmediate } from "node:timers/promises";
import { promisify } from "node:util";
import { NO_AGENT, withRealAgent } from "./testing/real-agent.ts";
import { aenv, type Result, TestIo } from "./testing/run.ts";
import { KEY, type ServerDouble } from "./testing/server.ts";

/** The agent is a process of this machine, so that both sides can be looked at. */
describe("cp", { skip: NO_AGENT, timeout: 60_000 }, () => {
  let server: ServerDouble;
  let id: string;
  let base: string;
  let here: string;
  let there: string;
  before(async () => {
    server = await withRealAgent();
    id = server.add().sandboxID;
    base = mkdtempSync(join(tmpdir(), "aenv-cp-"));
  });
  after(async () => {
    await server[Symbol.asyncDispose]();
    rmSync(base, { recursive: true });
  });
  beforeEach(() => {
    here = mkdtempSync(join(base, "here-"));
    there = mkdtempSync(join(base, "there-"));
  });

  async function cp(from: string, to: string, stdin: Uint8Array | string = "", ...options: string[]): Promise<Result> {
    const io = new TestIo({ env: { AENV_URL: server.url, AENV_API_KEY: KEY } });
    io.stdin.end(stdin);
    return await aenv(["cp", ...options, from, to], io);
  }

  async function copied(from: string, to: string): Promise<void> {
    const result = await cp(from, to);
    assert.deepEqual([result.code, result.stdout], [0, ""], result.stderr);
    assert.match(result.stderr, /^Copied \d+ files? \(.+\) to .+\n$/);
  }

  /** A tree with everything that a copy keeps. */
  function tree(at: string): void {
    mkdirSync(join(at, "sub", "empty"), { recursive: true });
    writeFileSync(join(at, "run.sh"), "#!/bin/sh\n");
    chmodSync(join(at, "run.sh"), 0o751);
    writeFileSync(join(at, "sub", "ünï 'q\" $x\nline"), "odd");
    writeFileSync(join(at, "sub", `${"long".repeat(50)}\n${"ä".repeat(20)}`), "long");
    writeFileSync(Buffer.concat([Buffer.from(`${at}/sub/`), Buffer.from([0xff, 0xfe, 0x2e])]), "bytes");
    symlinkSync("../run.sh", join(at, "sub", "link"));
    symlinkSync("/nowhere", join(at, "broken"));
    chmodSync(join(at, "sub"), 0o750);
    utimesSync(join(at, "run.sh"), 1_700_000_000, 1_700_000_000);
  }

  /** All of a tree, as far as a copy keeps it. */
  function listing(at: string): string {
    return execFileSync("find", [at, "-mindepth", "1", "-printf", "%P|%y|%m|%l|%s\\0"], { encoding: "latin1" })
      .split("\0")
      .map((line) => line.replace(/(\|d\|.*)\|\d+$/, "$1"))
      .sort()
      .join("\n");
  }

  it("copies a tree both ways: modes, times, links, odd names", async () => {
    tree(join(here, "src"));
    await copied(join(here, "src"), `${id}:${there}/copy`);
    assert.equal(listing(join(there, "copy")), listing(join(here, "src")));
    assert.equal(statSync(join(there, "copy", "run.sh")).mtimeMs, 1_700_000_000_000);
    await copied(`${id}:${there}/copy`, join(here, "back"));
    assert.equal(listing(join(here, "back")), listing(join(here, "src")));
    assert.equal(statSync(join(here, "back", "run.sh")).mtimeMs, 1_700_000_000_000);
  });

  it("lands as docker cp does, in both directions", async () => {
    for (const [from, to, prefix, suffix] of [
      [here, there, "", `${id}:`],
      [there, here, `${id}:`, ""],
    ] as const) {
      mkdirSync(join(from, "d"));
      writeFileSync(join(from, "d", "f"), "content");
      mkdirSync(join(to, "is-folder"));
      writeFileSync(join(to, "is-file"), "old content, longer");
      const at = (path: string): string => `${suffix}${to}/${path}`;
      const has = (path: string): void => assert.equal(readFileSync(join(to, path), "utf8"), "content", path);
      const file = `${prefix}${from}/d/f`;
      const folder = `${prefix}${from}/d`;
      for (const [source, target, lands] of [
        [file, "new-file", "new-file"],
        [file, "is-file", "is-file"],
        [file, "is-folder", "is-folder/f"],
        [file, "is-folder/", "is-folder/f"],
        [folder, "new-folder", "new-folder/f"],
        [folder, "new-slash/", "new-slash/f"],
        [folder, "is-folder", "is-folder/d/f"],
        [`${folder}/.`, "is-folder", "is-folder/f"],
        [`${folder}/.`, "new-dot", "new-dot/f"],
        [`${folder}/`, "is-folder/.", "is-folder/d/f"],
      ] as const) {
        await copied(source, at(target));
        has(lands);
        rmSync(join(to, lands));
      }
      writeFileSync(join(to, "is-file"), "");
      for (const [source, target, code, said] of [
        [file, "missing/", 3, /there is no folder .*missing\/\nhint: /],
        [file, "missing/f", 3, /there is no folder .*missing.*\nhint: make it first: /],
        [folder, "missing/f", 3, /there is no folder .*missing.*\nhint: make it first: /],
        [folder, "is-file", 2, /is a file, and .* is a folder/],
        [file, "is-file/", 2, /is a file, not a folder/],
        [`${prefix}${from}/none`, "x", 3, /there is no .*none/],
      ] as const) {
        const result = await cp(source, at(target));
        assert.deepEqual([result.code, said.test(result.stderr)], [code, true], `${target}: ${result.stderr}`);
      }
      rmSync(join(to, "is-folder"), { recursive: true });
    }
  });

  it("merges into what is there; a folder is never replaced by a file, nor the other way round", async () => {
    mkdirSync(join(here, "d", "sub"), { recursive: true });
    writeFileSync(join(here, "d", "sub", "new"), "new");
    mkdirSync(join(there, "d", "sub"), { recursive: true });
    writeFileSync(join(there, "d", "sub", "kept"), "kept");
    await copied(join(here, "d"), `${id}:${there}`);
    assert.deepEqual(readdirSync(join(there, "d", "sub")).sort(), ["kept", "new"]);
    rmSync(join(there, "d", "sub"), { recursive: true });
    writeFileSync(join(there, "d", "sub"), "a file now");
    const up = await cp(join(here, "d"), `${id}:${there}`);
    assert.deepEqual([up.code, /sub: is in the way: it is not a folder/.test(up.stderr)], [2, true], up.stderr);
    const down = await cp(`${id}:${there}/d`, here);
    assert.deepEqual([down.code, /sub is a folder, and a folder is not replaced/.test(down.stderr)], [1, true]);
    assert.deepEqual(readdirSync(join(here, "d")), ["sub"], "no temporary file is left");
  });

  it("32 MiB come through unchanged, by pipe and by name, and leave nothing half done", async () => {
    const bytes = randomBytes(32 << 20);
    const piped = await cp("-", `${id}:${there}/big`, bytes);
    assert.equal(piped.code, 0, piped.stderr);
    const shown = await cp(`${id}:${there}/big`, "-");
    assert.ok(shown.stdoutBytes.equals(bytes));
    assert.equal(shown.stderr, "");
    utimesSync(join(there, "big"), 1_700_000_000, 1_700_000_000);
    await copied(`${id}:${there}/big`, join(here, "big"));
    assert.equal(statSync(join(here, "big")).mtimeMs, 1_700_000_000_000);
    await copied(join(here, "big"), `${id}:${there}/again`);
    assert.ok(readFileSync(join(there, "again")).equals(bytes));
    assert.deepEqual([readdirSync(here), readdirSync(there).sort()], [["big"], ["again", "big"]]);
  });

  it("reads pipes and the kernel's files, whose size nobody knows, and writes into devices", async () => {
    execFileSync("mkfifo", [join(here, "pipe")]);
    // Opening waits for the reader, so that is left to a process of its own.
    execFileSync("sh", ["-c", `(echo through > ${here}/pipe) >/dev/null 2>&1 &`]);
    await copied(join(here, "pipe"), `${id}:${there}/from-pipe`);
    assert.match(readFileSync(join(there, "from-pipe"), "utf8"), /^through/);
    await copied(`${id}:/proc/version`, join(here, "version"));
    assert.match(readFileSync(join(here, "version"), "utf8"), /^Linux/);
    await copied(join(here, "version"), `${id}:/dev/null`);
    await copied(`${id}:${there}/from-pipe`, "/dev/null");
    assert.ok(lstatSync("/dev/null").isCharacterDevice());
    await copied("/proc/version", `${id}:${there}/theirs`);
    assert.match(readFileSync(join(there, "theirs"), "utf8"), /^Linux/);
    const reader = promisify(execFile)("cat", [join(here, "pipe")]);
    await copied(`${id}:${there}/theirs`, join(here, "pipe"));
    assert.match((await reader).stdout, /^Linux/);
  });

  it("leaves out what is no file, and says so", async () => {
    for (const at of [here, there]) {
      mkdirSync(join(at, "d"));
      execFileSync("mkfifo", [join(at, "d", "pipe")]);
      writeFileSync(join(at, "d", "f"), "");
    }
    const up = await cp(join(here, "d"), `${id}:${there}/up`, "", "--json");
    assert.deepEqual(JSON.parse(up.stdout), { files: 1, bytes: 0, leftOut: 1 });
    assert.match(up.stderr, /^left out .*d\/pipe: it is no file, folder or link\n$/);
    const down = await cp(`${id}:${there}/d`, join(here, "down"));
    assert.match(down.stderr, /^left out down\/pipe: it is no file, folder or link\nCopied 1 file /);
    assert.deepEqual(readdirSync(join(here, "down")), ["f"]);
  });

  it("follows a link that was named, and none that lies in the target", async () => {
    writeFileSync(join(there, "real"), "real");
    symlinkSync("real", join(there, "named"));
    await copied(`${id}:${there}/named`, join(here, "down"));
    assert.equal(readFileSync(join(here, "down"), "utf8"), "real");

    writeFileSync(join(here, "outside"), "outside");
    mkdirSync(join(here, "target"));
    symlinkSync("../outside", join(here, "target", "named"));
    await copied(`${id}:${there}/named`, join(here, "target"));
    assert.equal(readFileSync(join(here, "outside"), "utf8"), "outside");
    assert.equal(readFileSync(join(here, "target", "named"), "utf8"), "real");

    symlinkSync("outside", join(here, "to"));
    await copied(`${id}:${there}/named`, join(here, "to"));
    assert.deepEqual(
      [readFileSync(join(here, "outside"), "utf8"), readlinkSync(join(here, "to"))],
      ["real", "outside"],
    );

    mkdirSync(join(there, "d", "sub"), { recursive: true });
    writeFileSync(join(there, "d", "sub", "f"), "bad");
    mkdirSync(join(here, "d"));
    mkdirSync(join(here, "elsewhere"));
    symlinkSync("../elsewhere", join(here, "d", "sub"));
    const refused = await cp(`${id}:${there}/d`, here);
    assert.deepEqual([refused.code, readdirSync(join(here, "elsewhere"))], [1, []]);
    assert.match(refused.stderr, /d\/sub is in the way: it is not a folder/);
  });

  it("special bits do not come out of a sandbox, and do go in", async () => {
    mkdirSync(join(there, "d"));
    writeFileSync(join(there, "d", "su"), "");
    chmodSync(join(there, "d", "su"), 0o6755);
    await copied(`${id}:${there}/d`, join(here, "d"));
    assert.equal(statSync(join(here, "d", "su")).mode & 0o7777, 0o755);
    await copied(`${id}:${there}/d/su`, join(here, "su"));
    assert.equal(statSync(join(here, "su")).mode & 0o7777, 0o755);
    chmodSync(join(here, "su"), 0o4711);
    await copied(join(here, "su"), `${id}:${there}/su`);
    assert.equal(statSync(join(there, "su")).mode & 0o7777, 0o4711);
  });

  it("says what is wrong with the words, the user, the sandbox", async () => {
    for (const [argv, code, said] of [
      [["a", "b"], 2, /exactly one of source and target/],
      [[`${id}:a`, `${id}:b`], 2, /exactly one of source and target/],
      [["-", `${id}:${there}`], 2, /is a folder\nhint: name the file/],
      [[`${id}:${there}`, "-"], 2, /is a folder, and standard output takes one file\nhint: .*tar c/],
      [[join(here, "none"), `${id}:/tmp/x`], 3, /there is no .*none here/],
      [["/etc/passwd", "inobody:/tmp/x"], 3, /doesn't exist/],
      [["/etc/passwd", `${server.add("paused").sandboxID}:/tmp/x`], 4, /is paused\nhint: run `aenv resume/],
      [["/etc/passwd", `${id}:/proc/none/x`], 3, /there is no folder \/proc\/none/],
      [[`${id}:/dev/null`, "-"], 2, /is neither a file nor a folder\nhint: .*aenv exec \S+ cat \/dev\/null/],
      [
        ["/sys/devices/system/cpu/online", `${id}:${there}/x`],
        1,
        /^aenv: \S+online became shorter while it was read\n$/,
      ],
      [[`${id}:/etc/hostname`, "/dev/full"], 1, /^aenv: cannot write \/dev\/full: no space left\n$/],
    ] as const) {
      const [from, to] = argv;
      const result = await cp(from, to);
      assert.deepEqual([result.code, result.stdout, said.test(result.stderr)], [code, "", true], result.stderr);
    }
    const user = await cp("/etc/hostname", `${id}:${there}/x`, "", "--user", "nobody-of-this-name");
    assert.deepEqual([user.code, /invalid username/.test(user.stderr)], [2, true], user.stderr);
    const bytes = await cp("/etc/hostname", `${id}:${there}/\ufffd`);
    assert.deepEqual([bytes.code, /is not UTF-8\nhint: /.test(bytes.stderr)], [2, true], bytes.stderr);
  });

  it("Ctrl-C ends it also where a pipe has no other end", async () => {
    execFileSync("mkfifo", [join(here, "pipe")]);
    for (const [from, to] of [
      [join(here, "pipe"), `${id}:${there}/x`],
      [`${id}:/etc/hostname`, join(here, "pipe")],
    ] as const) {
      const io = new TestIo({ env: { AENV_URL: server.url, AENV_API_KEY: KEY } });
      const done = aenv(["cp", from, to], io);
      while (io.listeners("SIGINT") === 0) await setImmediate();
      io.signal("SIGINT");
      assert.equal((await done).code, 130);
    }
    assert.deepEqual(readdirSync(there), []);
  });

  it("a reader of a pipe that leaves is no failure; what cannot be written to says so at once", async () => {
    execFileSync("mkfifo", [join(here, "pipe")]);
    writeFileSync(join(there, "big"), Buffer.alloc(4 << 20));
    const reader = promisify(execFile)("head", ["-c", "1", join(here, "pipe")]);
    const left = await cp(`${id}:${there}/big`, join(here, "pipe"));
    assert.deepEqual([left.code, left.stdout, left.stderr], [0, "", ""]);
    assert.equal((await reader).stdout.length, 1);

    const socket = createServer().listen(join(here, "socket"));
    await once(socket, "listening");
    const refused = await cp(`${id}:${there}/big`, join(here, "socket"));
    socket.close();
    assert.deepEqual(
      [refused.code, /^aenv: cannot write \S+socket: ENXIO/.test(refused.stderr)],
      [1, true],
      refused.stderr,
    );
  });

  it("stops on Ctrl-C without half a file", async () => {
    const io = new TestIo({ env: { AENV_URL: server.url, AENV_API_KEY: KEY } });
    const done = aenv(["cp", "-", `${id}:${there}/cut`], io);
    io.stdin.write(Buffer.alloc(4 << 20));
    while (readdirSync(there).length === 0) await new Promise((resolve) => setTimeout(resolve, 5));
    io.signal("SIGINT");
    const result = await done;
    assert.deepEqual([result.code, result.stderr], [130, "aenv: interrupted; what was copied before is kept\n"]);
    while (readdirSync(there).length > 0) await new Promise((resolve) => setTimeout(resolve, 5));
  });
});
