import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdtempSync } from "node:fs";
import { chmod, mkdir, readFile, rm, stat, symlink, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, beforeEach, describe, it } from "node:test";
import { aenv, TestIo } from "./testing/run.ts";
import { KEY, ServerDouble } from "./testing/server.ts";

let server: ServerDouble;
const folder = mkdtempSync(join(tmpdir(), "aenv-cli-"));
beforeEach(async () => {
  server ??= await ServerDouble.start();
});
after(async () => {
  await server?.[Symbol.asyncDispose]();
  await rm(folder, { recursive: true });
});

function io(env: Record<string, string> = {}): TestIo {
  const made = new TestIo({ env: { AENV_URL: server.url, AENV_API_KEY: KEY, ...env } });
  made.stdin.end();
  return made;
}

describe("command line", () => {
  it("shows an example for every command, without a server", async () => {
    const root = await aenv(["--help"], new TestIo());
    assert.equal(root.code, 0);
    const words = [
      "auth",
      "pull",
      "start",
      "connect",
      "cn",
      "exec",
      "list",
      "ls",
      "pause",
      "resume",
      "timeout",
      "fork",
      "snapshot",
      "tree",
      "run",
      "ps",
      "attach",
      "cp",
      "url",
      "port-forward",
      "logs",
      "metrics",
    ];
    for (const word of [...words, "delete", "rm", "template", "snapshots"]) {
      assert.match(root.stdout, new RegExp(`\\b${word}\\b`));
      const isGroup = word === "template" || word === "snapshots";
      const help = await aenv(isGroup ? [word, "ls", "--help"] : [word, "--help"], new TestIo());
      assert.equal(help.code, 0, word);
      assert.match(help.stdout, /Examples:\n {2}\S+/, word);
    }
  });

  it("prints its version", async () => {
    const { version } = JSON.parse(await readFile(new URL("../../package.json", import.meta.url), "utf8"));
    assert.deepEqual((await aenv(["--version"], new TestIo())).stdout, `aenv ${version}\n`);
  });

  it("refuses what it does not understand with code 2, on standard error, naming the help", async () => {
    const wrong = [
      ["lst"],
      ["start"],
      ["pause"],
      ["start", "base", "--timeout", "x"],
      ["start", "base", "-e", "NOVALUE"],
      // As of a variable that is not set.
      ["logs", ""],
      ["rm", ""],
    ];
    for (const argv of [...wrong, ["ls", "--nope"], ["timeout", "i1", "soon"], ["fork", "i1", "--count", "0"], []]) {
      const result = await aenv(argv, io());
      assert.equal(result.code, 2, argv.join(" "));
      assert.equal(result.stdout, "");
      assert.match(result.stderr, /^aenv: [\s\S]*(hint: |Usage: )/, argv.join(" "));
    }
  });
});

describe("server and key", () => {
  it("takes a flag over the environment over the saved file", async () => {
    const config = join(folder, "order");
    await mkdir(join(config, "aenv"), { recursive: true });
    await writeFile(join(config, "aenv", "credentials"), JSON.stringify({ url: server.url, key: "saved" }));
    const saved = new TestIo({ env: { XDG_CONFIG_HOME: config } });
    assert.equal((await aenv(["ls"], saved)).code, 5);
    assert.equal(server.seen.at(-1)?.key, "saved");
    assert.equal((await aenv(["ls"], io({ XDG_CONFIG_HOME: config }))).code, 0);
    assert.equal((await aenv(["ls", "--key", "flag"], io())).code, 5);
    assert.equal(server.seen.at(-1)?.key, "flag");
    assert.equal((await aenv(["--key", "early", "ls"], io())).code, 5);
    assert.equal(server.seen.at(-1)?.key, "early");
  });

  it("sends the saved key to the server it was saved for and to no other", async () => {
    const config = join(folder, "other");
    await mkdir(join(config, "aenv"), { recursive: true });
    await writeFile(join(config, "aenv", "credentials"), JSON.stringify({ url: "http://127.0.0.1:1", key: "saved" }));
    const elsewhere = new TestIo({ env: { XDG_CONFIG_HOME: config } });
    assert.equal((await aenv(["ls", "--url", server.url], elsewhere)).code, 5);
    assert.equal(server.seen.at(-1)?.key, undefined);
  });

  it("says how to log in when there is no key, and what is wrong when nothing answers", async () => {
    const anonymous = await aenv(["ls"], io({ AENV_API_KEY: "" }));
    assert.equal(anonymous.code, 5);
    assert.match(anonymous.stderr, /aenv auth/);
    const nobody = await aenv(["ls", "--url", "http://127.0.0.1:1"], io());
    assert.equal(nobody.code, 6);
    assert.match(nobody.stderr, /^aenv: the server at http:\/\/127\.0\.0\.1:1 refuses connections\nhint: /);
    const foreign = createServer((_request, response) => response.writeHead(404).end("<h1>nothing here</h1>")).listen(
      0,
      "127.0.0.1",
    );
    await once(foreign, "listening");
    const url = `http://127.0.0.1:${(foreign.address() as AddressInfo).port}`;
    const other = await aenv(["ls", "--url", url], io());
    foreign.close();
    assert.deepEqual(
      [other.code, other.stderr.split("\n")[0]],
      [1, `aenv: what answers at ${url} is not an aenv server`],
    );
  });

  it("CLI-01: saves credentials for nobody else to read, whatever was there before", async () => {
    const config = join(folder, "xdg");
    const file = join(config, "aenv", "credentials");
    const login = () => aenv(["auth", "--url", server.url, "--key", KEY], io({ XDG_CONFIG_HOME: config }));
    const umask = process.umask(0);
    try {
      assert.equal((await login()).code, 0);
      assert.equal((await stat(file)).mode & 0o777, 0o600);
      assert.equal((await stat(join(config, "aenv"))).mode & 0o777, 0o700);
      await chmod(file, 0o644);
      const results = await Promise.all([login(), login()]);
      assert.deepEqual(
        results.map(({ code }) => code),
        [0, 0],
      );
    } finally {
      process.umask(umask);
    }
    assert.equal((await stat(file)).mode & 0o777, 0o600);
    assert.deepEqual(JSON.parse(await readFile(file, "utf8")), { url: server.url, key: KEY });

    const real = join(folder, "elsewhere");
    await writeFile(real, "{}");
    await rm(file);
    await symlink(real, file);
    assert.equal((await login()).code, 0);
    assert.equal(JSON.parse(await readFile(real, "utf8")).key, KEY);
    assert.equal((await stat(real)).mode & 0o777, 0o600);
  });

  it("saves nothing that the server does not accept", async () => {
    const config = join(folder, "refused");
    const result = await aenv(["auth", "--url", server.url, "--key", "wrong"], io({ XDG_CONFIG_HOME: config }));
    assert.equal(result.code, 5);
    await assert.rejects(stat(join(config, "aenv", "credentials")));
    assert.doesNotMatch(result.stderr + result.stdout, /wrong/);
  });

  it("CLI-07: logs in without a terminal by standard input, and says what to do when there is nothing", async () => {
    const config = join(folder, "headless");
    const piped = new TestIo({ env: { XDG_CONFIG_HOME: config, AENV_URL: server.url } });
    piped.stdin.end(`${KEY}\n`);
    assert.equal((await aenv(["auth"], piped)).code, 0);
    const saved = await aenv(["ls"], new TestIo({ env: { XDG_CONFIG_HOME: config } }));
    assert.equal(saved.code, 0);
    const empty = await aenv(["auth"], io({ AENV_API_KEY: "" }));
    assert.equal(empty.code, 2);
    assert.match(empty.stderr, /no API key was given\nhint: .*--key/);
    assert.doesNotMatch(empty.stderr, /\n\s+at /);
  });

  it("asks on a terminal, hides the key and puts the terminal back", async () => {
    const config = join(folder, "asked");
    const terminal = new TestIo({ env: { XDG_CONFIG_HOME: config }, terminal: true });
    const done = aenv(["auth"], terminal);
    await terminal.shows("stderr", "Server URL [http://127.0.0.1:8000]: ");
    terminal.stdin.write(`${server.url}\n`);
    await terminal.shows("stderr", "API key (not shown): ");
    terminal.stdin.write(`oops\x15${KEY}x\x7f\r`);
    const result = await done;
    assert.equal(result.code, 0, result.stderr);
    assert.deepEqual(terminal.rawModes, [true, false]);
    assert.doesNotMatch(result.stdout + result.stderr, new RegExp(KEY));
    assert.equal(JSON.parse(await readFile(join(config, "aenv", "credentials"), "utf8")).key, KEY);
  });
});

describe("sandboxes", () => {
  it("starts detached and prints only the id; --json prints the API's object", async () => {
    const result = await aenv(["start", "base", "-d", "-e", "A=1=2", "-e", "B=", "-m", "job=4 2", "-t", "60"], io());
    assert.equal(result.code, 0, result.stderr);
    assert.match(result.stdout, /^i\d{19}\n$/);
    const envVars = { A: "1=2", B: "" };
    const expected = { templateID: "base", timeout: 60, envVars, metadata: { job: "4 2" } };
    assert.deepEqual(server.seen.at(-1)?.body, expected);
    const json = JSON.parse((await aenv(["start", "base", "--json"], io())).stdout);
    assert.deepEqual(json, server.sandboxes.get(json.sandboxID));
  });

  it("wants a terminal for a shell before it starts anything", async () => {
    const before = server.sandboxes.size;
    const result = await aenv(["start", "base"], io());
    assert.equal(result.code, 2);
    assert.match(result.stderr, /hint: .*--detach/);
    assert.equal(server.sandboxes.size, before);
  });

  it("CLI-08: deletes the sandbox of an interrupted start", async () => {
    const terminal = io();
    let id = "";
    server.scripted.set("POST /v2/sandboxes", () => {
      terminal.signal("SIGINT");
      const body = server.add();
      id = body.sandboxID;
      return { status: 201, body };
    });
    const result = await aenv(["start", "base", "-d"], terminal);
    server.scripted.clear();
    assert.equal(result.code, 130);
    assert.equal(result.stdout, "");
    assert.equal(server.sandboxes.has(id), false);
  });

  it("does a done thing once more with code 0 and says so", async () => {
    const { sandboxID: id } = server.add();
    assert.match((await aenv(["pause", id], io())).stdout, /^Paused /);
    const again = await aenv(["pause", id], io());
    assert.deepEqual([again.code, again.stdout], [0, `${id} was paused already.\n`]);
    const json = await aenv(["pause", id, "--json"], io());
    assert.deepEqual(JSON.parse(json.stdout), { sandboxID: id, result: "already_paused" });
    assert.match((await aenv(["resume", id], io())).stdout, /^Resumed /);
    const running = await aenv(["resume", id], io());
    assert.deepEqual([running.code, running.stdout], [0, `${id} was running already.\n`]);
  });

  it("tells a conflict from what was done already", async () => {
    const { sandboxID: id } = server.add();
    server.scripted.set(`POST /sandboxes/${id}/pause`, () => ({
      status: 409,
      body: { code: 409, message: "it is being forked" },
    }));
    const result = await aenv(["pause", id], io());
    server.scripted.clear();
    assert.deepEqual([result.code, result.stderr], [4, "aenv: it is being forked\n"]);
  });

  it("sets the timeout, forks, deletes several", async () => {
    const { sandboxID: id } = server.add();
    assert.equal((await aenv(["timeout", id, "600"], io())).code, 0);
    assert.deepEqual(server.seen.at(-1)?.body, { timeout: 600 });
    const forked = await aenv(["fork", id, "--count", "3"], io());
    const ids = forked.stdout.trim().split("\n");
    assert.equal(ids.length, 3);
    const removed = await aenv(["rm", ...ids, "inobody"], io());
    assert.equal(removed.code, 3);
    assert.equal(removed.stdout.split("\n").length, 4);
    assert.match(removed.stderr, /^aenv: inobody: .*doesn't exist/);
    for (const each of ids) assert.equal(server.sandboxes.has(each), false);
  });

  it("reports copies that failed with their own code and prints the others", async () => {
    const { sandboxID: id } = server.add();
    server.scripted.set(`POST /sandboxes/${id}/fork`, () => ({
      status: 201,
      body: [{ sandbox: { sandboxID: "icopy" } }, { error: { code: 503, message: "no slot" } }],
    }));
    const result = await aenv(["fork", id, "--count", "2"], io());
    server.scripted.clear();
    assert.deepEqual([result.code, result.stdout, result.stderr], [6, "icopy\n", "aenv: a copy failed: no slot\n"]);
  });
});

describe("list", () => {
  it("CLI-04: fetches every page, prints all of it, and ends quietly when the reader leaves", async () => {
    const { sandboxID: _, ...rest } = server.add();
    const all = Array.from({ length: 500 }, (_, at) => ({ ...rest, sandboxID: `ipage${at}` }));
    server.scripted.set("GET /v2/sandboxes", ({ query }) => {
      const from = Number(query.get("nextToken") ?? 0);
      const headers: Record<string, string> = from + 100 < all.length ? { "x-next-token": String(from + 100) } : {};
      return { status: 200, body: all.slice(from, from + 100), headers };
    });
    const json = await aenv(["ls", "--json"], io());
    assert.deepEqual(JSON.parse(json.stdout), all);
    const table = await aenv(["ls"], io());
    assert.equal(table.stdout.trim().split("\n").length, 501);
    // biome-ignore lint/suspicious/noControlCharactersInRegex: it is about escape sequences
    assert.doesNotMatch(table.stdout, /\x1b/);
    const gone = io();
    gone.stdout.on("error", () => {});
    gone.stdout.destroy();
    const result = await aenv(["ls", "--json"], gone);
    assert.deepEqual([result.code, result.stderr], [0, ""]);
    server.scripted.clear();
  });

  it("says how long each has left: by its timeout, or as long as the server keeps it paused", async () => {
    const sandboxes = [server.add("running"), server.add("paused"), { ...server.add("paused") }];
    const [running, kept, removed] = sandboxes;
    Object.assign(removed ?? {}, { removeAt: new Date(Date.now() + 7_190_000).toISOString() });
    server.scripted.set("GET /v2/sandboxes", () => ({ status: 200, body: sandboxes }));
    const lines = (await aenv(["ls"], io())).stdout.split("\n");
    const endOf = (id?: string) => lines.find((line) => line.startsWith(`${id} `))?.match(/ {2}(\S+( \S+)?)$/)?.[1];
    assert.match(String(endOf(running?.sandboxID)), /^(4m \d+s|5m 0s)$/);
    assert.equal(endOf(kept?.sandboxID), "-");
    assert.match(String(endOf(removed?.sandboxID)), /^1h 59m$/);
    server.scripted.clear();
  });

  it("encodes the metadata filter the way E2B's servers decode it", async () => {
    let raw = "";
    server.scripted.set("GET /v2/sandboxes", ({ query }) => {
      raw = query.get("metadata") ?? "";
      assert.equal(query.get("state"), "running,paused");
      return { status: 200, body: [] };
    });
    await aenv(["ls", "-m", "k y=v&1", "-s", "running,paused"], io());
    server.scripted.clear();
    assert.equal(raw, "k%2520y=v%25261");
  });
});
