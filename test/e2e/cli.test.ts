import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { readFileSync, rmSync, statSync } from "node:fs";
import { join } from "node:path";
import { after, before, describe, it } from "node:test";
import { Cli, freshUser } from "./cli.ts";
import { sharedServer, type TestServer } from "./server.ts";

const ID = /^i[a-z0-9]{19}$/;
const UNKNOWN = `i${"0".repeat(19)}`;

describe("the CLI", { timeout: 180_000 }, () => {
  let server: TestServer;
  let aenv: Cli;
  /** Shared by the tests that leave it as it was. */
  let id: string;
  before(async () => {
    server = await sharedServer();
    aenv = new Cli(server);
    id = await aenv.output("start", "base", "--detach", "--timeout", "600", "--metadata", "job=cli");
  });
  after(() => aenv.output("rm", id));

  it("logs in by flags, by standard input and by prompt, and only with a key the server accepts", async () => {
    const env = freshUser();
    const saved = join(env.XDG_CONFIG_HOME, "aenv", "credentials");
    const wrong = await aenv.run(["auth", "--url", server.url, "--key", "wrong"], { env });
    assert.deepEqual([wrong.code, wrong.stdout], [5, ""]);
    assert.match(wrong.stderr, /^aenv: the server does not accept this API key\nhint: .*aenv auth/);
    assert.throws(() => statSync(saved), { code: "ENOENT" });

    const asked = await aenv.onTerminal(
      ["auth"],
      [
        ["expect", "Server URL [http://127.0.0.1:8000]: "],
        ["send", `${server.url}\r`],
        ["expect", "API key (not shown): "],
        ["send", `${server.apiKey}\r`],
      ],
      env,
    );
    assert.deepEqual([asked.code, asked.restored], [0, true], asked.shown);
    assert.match(asked.shown, /Logged in to http/);
    assert.ok(!asked.shown.includes(server.apiKey));
    assert.equal(statSync(saved).mode & 0o777, 0o600);
    assert.deepEqual(JSON.parse(readFileSync(saved, "utf8")), { url: server.url, key: server.apiKey });
    assert.match((await aenv.run(["ls", "-q"], { env })).stdout, new RegExp(id));

    rmSync(saved);
    const piped = await aenv.run(["auth", "--url", server.url], { env, stdin: `${server.apiKey}\n` });
    assert.equal(piped.code, 0, piped.stderr);
    assert.equal((await aenv.run(["ls"], { env })).code, 0);
    const flags = await aenv.run(["auth", "--url", server.url, "--key", server.apiKey, "--json"], { env });
    assert.deepEqual(JSON.parse(flags.stdout), { url: server.url, credentialsFile: saved });
    rmSync(env.XDG_CONFIG_HOME, { recursive: true });
  });

  it("starts detached and prints the id and nothing else; lists it", async () => {
    const started = await aenv.run(["start", "base", "-d", "-e", "A=from start"]);
    assert.deepEqual([started.code, started.stderr], [0, ""]);
    const own = started.stdout.slice(0, -1);
    assert.match(own, ID);
    try {
      assert.equal(await aenv.output("exec", own, "printenv", "A"), "from start");
      const table = (await aenv.output("ls")).split("\n");
      assert.match(table[0] ?? "", /^SANDBOX +TEMPLATE +STATE +CPU +MEMORY +DISK +STARTED +ENDS IN$/);
      assert.ok(
        table.some((line) => new RegExp(`^${own} +base +running +2 +1 GiB +10 GiB .* (4m \\d+s|5m 0s)$`).test(line)),
      );
      const listed = JSON.parse(await aenv.output("ls", "--json", "-m", "job=cli"));
      assert.deepEqual([listed.length, listed[0].sandboxID, listed[0].state], [1, id, "running"]);
      assert.equal(await aenv.output("ls", "-q", "-s", "paused"), "");
      assert.match(await aenv.output("template", "list"), /^NAME .*\nbase +\w{20} +ready /);
    } finally {
      await aenv.output("rm", own);
    }
  });

  it("executes: words behind the id are the command's, streams apart, codes as a shell's", async () => {
    assert.equal(
      await aenv.output("exec", id, "printf", "%s|", "-n", "--help", "a  b", "$HOME", ""),
      "-n|--help|a  b|$HOME||",
    );
    const both = await aenv.run(["exec", id, "sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert.deepEqual([both.code, both.stdout, both.stderr], [7, "out\n", "err\n"]);
    const where = ["exec", "-w", "/etc", "-u", "root", "-e", "A=1", id, "sh", "-c", 'echo "$PWD $A" $(whoami)'];
    assert.equal(await aenv.output(...where), "/etc 1 root");
    assert.equal((await aenv.run(["exec", id, "sh", "-c", "kill -SEGV $$"])).code, 139);
    const missing = await aenv.run(["exec", id, "no-such-program"]);
    assert.deepEqual([missing.code, missing.stdout], [127, ""]);
    assert.match(missing.stderr, /^aenv: cannot run no-such-program: .*not found/);
    assert.equal((await aenv.run(["exec", id, "/etc/passwd"])).code, 126);
  });

  it("executes: 8 MiB of any bytes in and out are the same; an open silent input does not hold it", async () => {
    const bytes = randomBytes(8 << 20);
    const hash = createHash("sha256").update(bytes).digest("hex");
    const through = await aenv.run(["exec", id, "sh", "-c", "tee /tmp/copy"], { stdin: bytes });
    assert.equal(through.code, 0, through.stderr);
    assert.ok(through.bytes.equals(bytes));
    assert.match(await aenv.output("exec", id, "sha256sum", "/tmp/copy"), new RegExp(`^${hash} `));
    const silent = await aenv.run(["exec", id, "echo", "done"], { stdin: "open" });
    assert.deepEqual([silent.code, silent.stdout], [0, "done\n"]);
    assert.equal((await aenv.run(["exec", id, "head", "-c", "3"], { stdin: bytes })).bytes.length, 3);
  });

  it("pauses (again: says so), resumes, sets the timeout", async () => {
    assert.equal(await aenv.output("pause", id), `Paused ${id}.`);
    assert.equal(await aenv.output("pause", id), `${id} was paused already.`);
    assert.equal(await aenv.output("ls", "-q", "-s", "paused"), id);
    const paused = await aenv.run(["exec", id, "true"]);
    assert.equal(paused.code, 125);
    assert.match(paused.stderr, new RegExp(`is paused\nhint: run \`aenv resume ${id}\` first\n$`));
    assert.equal(await aenv.output("resume", id), `Resumed ${id}.`);
    assert.equal(await aenv.output("resume", id), `${id} was running already.`);
    assert.match(await aenv.output("timeout", id, "1000"), new RegExp(`^${id} ends at \\d{4}-`));
    const [{ endAt }] = JSON.parse(await aenv.output("ls", "--json", "-m", "job=cli"));
    assert.ok(Math.abs(Date.parse(endAt) - Date.now() - 1_000_000) < 10_000, endAt);
  });

  it("forks into several and deletes several", async () => {
    await aenv.output("exec", id, "sh", "-c", "echo before > /tmp/state");
    const forks = (await aenv.output("fork", id, "--count", "3")).split("\n");
    assert.deepEqual([forks.length, forks.every((fork) => ID.test(fork))], [3, true]);
    for (const fork of forks) assert.equal(await aenv.output("exec", fork, "cat", "/tmp/state"), "before");
    const gone = await aenv.run(["rm", ...forks, UNKNOWN]);
    assert.equal(gone.code, 3);
    assert.deepEqual(gone.stdout.trim().split("\n").sort(), forks.map((fork) => `Deleted ${fork}.`).sort());
    assert.match(gone.stderr, new RegExp(`^aenv: ${UNKNOWN}: .*\nhint: .*aenv ls`));
    assert.equal(await aenv.output("ls", "-q"), id);
  });

  it("says what went wrong, what to do, and by its code what kind of thing it was", async () => {
    const said = async (argv: string[], env?: NodeJS.ProcessEnv): Promise<[number, string]> => {
      const { code, stdout, stderr } = await aenv.run(argv, env === undefined ? {} : { env });
      assert.equal(stdout, "");
      assert.match(stderr, /^aenv: .+\nhint: .+\n$/);
      return [code, stderr];
    };
    for (const verb of ["pause", "resume", "fork", "rm"]) {
      const [code, text] = await said([verb, UNKNOWN]);
      assert.equal(code, 3);
      assert.match(text, new RegExp(`${UNKNOWN}.*\nhint: .aenv ls. shows`));
    }
    const [template, hint] = await said(["start", "no-such-template", "-d"]);
    assert.equal(template, 3);
    assert.match(hint, /aenv template ls/);
    assert.equal((await said(["--key", "wrong", "ls"]))[0], 5);
    const env = freshUser();
    assert.match((await said(["ls", "--url", server.url], env))[1], /not logged in\nhint: run `aenv auth`/);
    assert.equal((await said(["--url", "http://127.0.0.1:1", "ls"]))[0], 6);
    assert.equal((await said(["lss"]))[0], 2);
    assert.equal((await said(["start", "base"]))[0], 2);
    assert.equal((await said(["timeout", id, "soon"]))[0], 2);
    rmSync(env.XDG_CONFIG_HOME, { recursive: true });
  });

  it("puts a terminal on a shell that stays: resize, leave, hang up, pause, signals, exit code", async () => {
    const begun = await aenv.onTerminal(
      ["start", "base"],
      [
        ["expect", "$ "],
        ["send", "stty size; mark=still-there; tty > /tmp/tty\r"],
        ["expect", "25 90"],
        ["resize", 101, 33],
        ["send", 'until [ "$(stty size)" = "33 101" ]; do sleep 0.1; done; echo re"sized"\r'],
        ["expect", "resized"],
        ["send", "\r~."],
      ],
    );
    assert.deepEqual([begun.code, begun.raw, begun.restored], [0, true, true], begun.shown);
    assert.ok(!begun.shown.includes("\r\r\n"), "line feeds are the sandbox's own, none is added to");
    assert.match(
      begun.shown,
      /\r\nDetached; the shell in i\w+ goes on\. The sandbox runs until .*\r\n +aenv cn i\w+ .*\r\n +aenv rm i/,
    );
    const own = /Started (i\w+)\./.exec(begun.shown)?.[1] ?? "";
    const same = 'echo "<$mark>"; [ "$(tty)" = "$(cat /tmp/tty)" ] && echo same" terminal"\r';
    try {
      const closed = await aenv.onTerminal(
        ["cn", own],
        [["expect", "$ "], ["send", same], ["expect", "<still-there>"], ["expect", "same terminal"], ["hangup"]],
      );
      assert.equal(closed.code, 129);

      await aenv.output("pause", own);
      const resumed = await aenv.onTerminal(
        ["connect", own],
        [
          ["expect", `Resumed ${own}.`],
          ["expect", "$ "],
          ["send", same],
          ["expect", "<still-there>"],
          ["expect", "same terminal"],
          ["signal", "TERM"],
        ],
      );
      assert.deepEqual([resumed.code, resumed.raw, resumed.restored], [143, true, true], resumed.shown);
      assert.match(resumed.shown, /Interrupted; the shell in i\w+ goes on\./);

      const ended = await aenv.onTerminal(
        ["cn", own],
        [
          ["expect", "$ "],
          ["send", "exit 7\r"],
        ],
      );
      assert.deepEqual([ended.code, ended.restored], [7, true], ended.shown);
      assert.match(ended.shown, /The shell in i\w+ has ended\. The sandbox runs until/);
    } finally {
      await aenv.output("rm", own);
    }
  });
});
