import assert from "node:assert/strict";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { stripVTControlCharacters } from "node:util";
import { Sandbox } from "e2b";
import { Cli } from "./cli.ts";
import { startTestRegistry, type TestRegistry } from "./registry.ts";
import { useServer } from "./sdk.ts";
import { sharedServer, startTestServer } from "./server.ts";

const MIB = 1024 * 1024;

describe("pull", { timeout: 300_000 }, () => {
  let registry: TestRegistry;
  let aenv: Cli;
  before(async () => {
    registry = await startTestRegistry();
    aenv = new Cli(await sharedServer());
  });
  after(async () => {
    for (const name of ["big", "program"]) await aenv.run(["template", "rm", name]);
    await registry[Symbol.asyncDispose]();
  });

  it("brings an image of 500 MB in several layers, shows how far it is, and starts it as the layers say", async () => {
    assert.ok(registry.sizeBytes > 500 * MIB);
    const pulled = await aenv.run(["pull", `${registry.address}/test/big:1`, "--name", "big"]);
    assert.equal(pulled.code, 0, pulled.stderr);
    assert.match(pulled.stdout, /^Template big \(\w{20}\) is ready: aenv start big\n$/);
    assert.match(pulled.stderr, /^downloading [\d.]+ MiB of 6\d\d MiB \(\d+%\), \d of 6 layers, \ds$/m);
    assert.ok(!pulled.stderr.includes("\r") && !pulled.stderr.includes("\x1b"));

    const id = await aenv.output("start", "big", "-d");
    try {
      const shell = (script: string): Promise<string> => aenv.output("exec", id, "sh", "-c", script);
      assert.equal(await shell("pwd; whoami; echo $FROM_IMAGE"), "/opt\nuser\nyes");
      assert.deepEqual((await shell("ls /opt; ls /opt/hidden")).split("\n"), [
        ...["back.bin", "hidden", "id", "kept.bin", "link", "owned", "replaced", "same", "tree"],
        "new.bin",
      ]);
      for (const [path, sum] of Object.entries(registry.sha256)) {
        assert.equal(await aenv.output("exec", id, "sha256sum", path), `${sum}  ${path}`);
      }
      assert.equal(await shell("cat replaced same tree; readlink link"), "newnewa file nowkept.bin");
      assert.equal(await shell("stat -c '%a %u %g' owned; stat -c %a id; ./id -u"), "640 1234 5678\n4755\n0");
      assert.equal(
        await shell(
          "[ replaced -ef same ] && echo linked; rm -f replaced; sudo rm kept.bin && ls kept.bin || echo gone",
        ),
        "linked\ngone",
      );
    } finally {
      await aenv.output("rm", id);
    }
  });

  it("draws a bar on a terminal; an image that is here already is not fetched again", async () => {
    const argv = ["pull", `${registry.address}/test/big:2`, "-n", "big"];
    const first = await aenv.onTerminal(argv, []);
    assert.deepEqual([first.code, first.restored], [0, true], first.shown);
    const plain = stripVTControlCharacters(first.shown);
    assert.match(plain, /\r\[#+\.+\] downloading [\d.]+ MiB of 6\d\d MiB \(\d+%\), \d of 6 layers, \ds\r/);
    assert.match(plain, /\nTemplate big \(\w{20}\) is ready: aenv start big\r\n$/);
    const again = await aenv.onTerminal(argv, []);
    assert.equal(again.code, 0, again.shown);
    assert.doesNotMatch(again.shown, /downloading/);
  });

  it("says what is wrong with an image, by its code too, and leaves no template", async () => {
    const wrong = async (argv: string[], stdin = ""): Promise<[number, string]> => {
      const { code, stdout, stderr } = await aenv.run(["pull", ...argv, "--name", "half"], { stdin });
      assert.equal(stdout, "");
      assert.match(stderr, /\naenv: the template could not be made: [^\n]+\n$/);
      assert.doesNotMatch(await aenv.output("template", "ls"), /half/);
      return [code, stderr];
    };
    const [noTag, tag] = await wrong([`${registry.address}/test/big:none`]);
    assert.equal(noTag, 3);
    assert.match(tag, /has no test\/big:none/);
    const [noRegistry, down] = await wrong(["127.0.0.1:1/test/big:1"]);
    assert.equal(noRegistry, 6);
    assert.match(down, /registry 127\.0\.0\.1:1 cannot be reached/);
    const image = `${registry.privateAddress}/test/program:1`;
    assert.equal((await wrong([image]))[0], 5);
    const [badLogin, login] = await wrong([image, "--username", registry.user], "wrong\n");
    assert.equal(badLogin, 5);
    assert.match(login, /wants other credentials/);
    assert.doesNotMatch(login, /wrong/);
    const noName = await aenv.run(["pull", "No Image", "--name", "half"]);
    assert.equal(noName.code, 2);
    assert.doesNotMatch(await aenv.output("template", "ls"), /half/);
  });

  it("logs in to a registry; an image of one program and nothing else runs, and has no shell", async () => {
    const image = `${registry.privateAddress}/test/program:1`;
    const pulled = await aenv.run(["pull", image, "-u", registry.user], { stdin: `${registry.password}\n` });
    assert.equal(pulled.code, 0, pulled.stderr);
    const id = await aenv.output("start", "program", "--detach");
    try {
      assert.equal(await aenv.output("exec", id, "/app", "a", "b"), "hello from /app a b");
      assert.equal((await aenv.run(["exec", id, "sh"])).code, 127);
      const entered = await aenv.onTerminal(["cn", id], []);
      assert.equal(entered.code, 3);
      assert.match(
        entered.shown,
        /^aenv: i\w+ has no shell: neither \/bin\/bash nor \/bin\/sh .*\r\nhint: .*aenv exec/,
      );
      // What the SDKs want of an image is a shell; their files they get without.
      useServer(await sharedServer());
      const sandbox = await Sandbox.connect(id);
      const noBash = (error: unknown): boolean =>
        error instanceof Error && /the image has no \/bin\/bash: commands and terminals/.test(error.message);
      await assert.rejects(sandbox.commands.run("true"), noBash);
      await assert.rejects(sandbox.pty.create({ cols: 80, rows: 24, onData: () => {} }), noBash);
      await sandbox.files.write("new/file", "x");
      assert.equal(await sandbox.files.read("/new/file"), "x");
      assert.equal((await sandbox.files.getInfo("/app")).owner, "0");
      assert.equal(await sandbox.files.exists("/tmp"), true);
    } finally {
      await aenv.output("rm", id);
    }
  });

  it("outlives a blobd that is killed in the middle", async () => {
    const server = await startTestServer();
    try {
      const own = new Cli(server);
      let killed: Promise<void> | undefined;
      const pulled = await own.run(["pull", `${registry.address}/test/big:1`, "--name", "big"], {
        onStderr: (all) => {
          if (all.includes("\ndownloading ")) killed ??= server.killService("blobd");
        },
      });
      assert.ok(killed, `it was over before it could be killed: ${pulled.stderr}`);
      await killed;
      assert.equal(pulled.code, 0, pulled.stderr);
      const id = await own.output("start", "big", "-d");
      const [path = "", sum] = Object.entries(registry.sha256)[0] ?? [];
      assert.equal(await own.output("exec", id, "sha256sum", path), `${sum}  ${path}`);
      await own.output("pull", `${registry.address}/test/program:1`);
      assert.deepEqual(readdirSync(join(server.dataDir, "blobs", "tmp")), []);
    } finally {
      await server.stop();
    }
  });
});
