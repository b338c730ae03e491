import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import { join } from "node:path";
import { describe, it } from "node:test";
import { CommandExitError, FileNotFoundError, FilesystemEventType } from "e2b";
import { newSandbox, output } from "./sdk.ts";
import { fromSetUp, until } from "./server.ts";

const MIB = 1024 * 1024;

/** What the JavaScript SDK asks of an agent of the version that ours says it is; the Python SDK's part is in sdk_python. */
describe("the agent by the SDK", { timeout: 300_000 }, () => {
  it("says the version that the API says of it", async () => {
    await using sandbox = await newSandbox();
    const said = execFileSync(join(fromSetUp("AENV_TEST_BIN_DIR"), "envd"), ["-version"], { encoding: "utf8" }).trim();
    assert.equal((await sandbox.getInfo()).envdVersion, said);
  });

  it("takes and gives streams, plain and packed, byte for byte (FILE-11)", async () => {
    await using sandbox = await newSandbox();
    const contents = {
      noise: randomBytes(5 * MIB),
      empty: Buffer.alloc(0),
      nulls: Buffer.alloc(MIB),
      bom: Buffer.from("\ufeffx"),
    };
    for (const [name, content] of Object.entries(contents)) {
      for (const gzip of [false, true]) {
        const written = await sandbox.files.write(name, new Blob([content]).stream(), { gzip });
        assert.deepEqual([written.name, written.path, written.type], [name, `/home/user/${name}`, "file"]);
        assert.ok(
          Buffer.from(await sandbox.files.read(name, { format: "bytes", gzip })).equals(content),
          `${name} ${gzip}`,
        );
      }
      const sum = createHash("sha256").update(content).digest("hex");
      assert.equal(await output(sandbox, `sha256sum < ${name}`), `${sum}  -`);
    }
    const many = await sandbox.files.write(
      [...Array(5).keys()].map((at) => ({ path: `many/${at}/é ${at}`, data: new Blob([String(at)]).stream() })),
    );
    assert.deepEqual(
      many.map(({ path }) => path).sort(),
      [...Array(5).keys()].map((at) => `/home/user/many/${at}/é ${at}`),
    );
  });

  it("keeps a file's metadata, and programs inside may set it", async () => {
    await using sandbox = await newSandbox();
    const written = await sandbox.files.write("f", "x", { metadata: { Color: "red", size: "1 2" } });
    assert.deepEqual(written.metadata, { color: "red", size: "1 2" });
    assert.deepEqual((await sandbox.files.getInfo("f")).metadata, { color: "red", size: "1 2" });
    await sandbox.commands.run(`python3 -c 'import os; os.setxattr("f", "user.e2b.inside", b"yes")'`);
    const listed = (await sandbox.files.list(".")).find(({ name }) => name === "f");
    assert.deepEqual(listed?.metadata, { color: "red", size: "1 2", inside: "yes" });
    await sandbox.files.write("f", "y", { metadata: { only: "this" } });
    assert.deepEqual((await sandbox.files.getInfo("f")).metadata, { only: "this" });
    await sandbox.files.write("f", "y");
    assert.equal((await sandbox.files.getInfo("f")).metadata, undefined);
  });

  it("watches with entries, recursively, network mounts allowed or not (FILE-05)", async () => {
    await using sandbox = await newSandbox();
    await sandbox.files.makeDir("watched");
    const seen: { name: string; type: string; path: string | undefined }[] = [];
    const watch = await sandbox.files.watchDir(
      "watched",
      ({ name, type, entry }) => void seen.push({ name, type, path: entry?.path }),
      { recursive: true, includeEntry: true, allowNetworkMounts: true },
    );
    await sandbox.commands.run("mkdir -p watched/a/b/c && touch watched/a/b/c/f");
    await sandbox.files.write("watched/a/g", "1");
    await sandbox.files.write("watched/a/g", "2");
    await sandbox.commands.run("chmod 600 watched/a/g && mv watched/a/g watched/h && rm watched/h");
    await until("the last removal", () =>
      seen.some(({ name, type }) => name === "h" && type === FilesystemEventType.REMOVE),
    );
    await watch.stop();
    // Writes that were not read between are one.
    const of = (name: string): string[] =>
      seen
        .filter((event) => event.name === name)
        .map(({ type }) => type)
        .filter((type, at, all) => type !== all[at - 1]);
    for (const name of ["a", "a/b", "a/b/c", "a/b/c/f"]) {
      assert.equal(of(name).filter((type) => type === FilesystemEventType.CREATE).length, 1, `${name}: ${of(name)}`);
    }
    const { CREATE, WRITE, CHMOD, RENAME } = FilesystemEventType;
    assert.deepEqual(of("a/g"), [CREATE, CHMOD, WRITE, CHMOD, WRITE, CHMOD, RENAME]);
    assert.ok(
      seen.some(({ path }) => path === "/home/user/watched/a/b/c"),
      JSON.stringify(seen),
    );
    await assert.rejects(
      sandbox.files.watchDir("nothing", () => {}),
      FileNotFoundError,
    );
  });

  it("says the output again to who attaches, without gap or double, also after the end (PROC-05)", async () => {
    await using sandbox = await newSandbox();
    const script = "for i in $(seq 60); do echo line $i; sleep 0.02; done; echo wrong >&2; exit 4";
    const first = await sandbox.commands.run(script, { background: true, timeoutMs: 0 });
    await until("some lines", () => first.stdout.includes("line 10\n"));
    await first.disconnect();
    const lines = [...Array(60).keys()].map((at) => `line ${at + 1}\n`).join("");
    for (const _ of [1, 2]) {
      const again = await sandbox.commands.connect(first.pid);
      await assert.rejects(
        again.wait(),
        (error) =>
          error instanceof CommandExitError &&
          error.exitCode === 4 &&
          error.stdout === lines &&
          error.stderr === "wrong\n",
      );
    }
  });

  it("has several terminals at once, each with a size, input and output of its own, and one is come back to (PROC-17)", async () => {
    await using sandbox = await newSandbox();
    const terminals = await Promise.all(
      [40, 80, 120].map(async (cols) => {
        const shown: Buffer[] = [];
        const onData = (data: Uint8Array): void => void shown.push(Buffer.from(data));
        const { pid } = await sandbox.pty.create({ cols, rows: 20, onData, timeoutMs: 0 });
        return { cols, pid, onData, text: () => Buffer.concat(shown).toString() };
      }),
    );
    const type = (pid: number, line: string): Promise<void> => sandbox.pty.sendInput(pid, Buffer.from(`${line}\n`));
    // What is typed is echoed: the answer is put together by the shell, and is nowhere in what was typed.
    await Promise.all(terminals.map(({ pid }) => type(pid, "echo size-$(stty size | tr ' ' x)-ä└")));
    for (const { cols, text } of terminals)
      await until(`the terminal of ${cols}`, () => text().includes(`size-20x${cols}-ä└`));
    for (const { cols, text } of terminals) {
      for (const other of terminals) if (other.cols !== cols) assert.ok(!text().includes(`size-20x${other.cols}-`));
    }
    const [first, second] = terminals;
    assert.ok(first !== undefined && second !== undefined);
    await sandbox.pty.resize(first.pid, { cols: 200, rows: 50 });
    await type(first.pid, "echo now-$(stty size | tr ' ' x)");
    await until("the new size", () => first.text().includes("now-50x200"));
    assert.equal(await sandbox.pty.kill(second.pid), true);
    const again: Buffer[] = [];
    await sandbox.pty.connect(first.pid, { onData: (data) => void again.push(Buffer.from(data)) });
    await type(first.pid, "echo still-$((40 + 2))");
    await until("the terminal that was come back to", () => Buffer.concat(again).toString().includes("still-42"));
  });

  it("ends what runs in a terminal by its keys, behind a line too that nobody has read (PROC-17)", async () => {
    await using sandbox = await newSandbox();
    for (const key of ["\x03", "\x1c"]) {
      const shown: Buffer[] = [];
      const onData = (data: Uint8Array): void => void shown.push(Buffer.from(data));
      const { pid } = await sandbox.pty.create({ cols: 80, rows: 20, onData, timeoutMs: 0 });
      const shows = (text: string): boolean => Buffer.concat(shown).includes(text);
      const type = (keys: string): Promise<void> => sandbox.pty.sendInput(pid, Buffer.from(keys));
      await type("sh -c 'echo runs-$((40 + 2)); exec sleep 1000'\r");
      await until("the program", () => shows("runs-42"));
      for (const keys of ["\r", key, "echo next-$((40 + 2))\r"]) await type(keys);
      await until(`the command behind ${JSON.stringify(key)}`, () => shows("next-42"));
    }
  });
});
