import assert from "node:assert/strict";
import { after, beforeEach, describe, it } from "node:test";
import { aenv, type Result, TestIo } from "./testing/run.ts";
import { KEY, ServerDouble } from "./testing/server.ts";

let server: ServerDouble;
beforeEach(async () => {
  server ??= await ServerDouble.start();
});
after(async () => await server?.[Symbol.asyncDispose]());

function open(): TestIo {
  return new TestIo({ env: { AENV_URL: server.url, AENV_API_KEY: KEY } });
}

function sandbox(): string {
  const { sandboxID } = server.add();
  server.logs.set(sandboxID, []);
  server.metrics.set(sandboxID, []);
  return sandboxID;
}

function log(id: string, message: string, atMs: number, fields: object = { logger: "sandbox" }): void {
  server.logs.get(id)?.push({ timestamp: new Date(atMs).toISOString(), level: "info", message, fields });
}

function measure(id: string, atS: number, cpuUsedPct: number): void {
  const sizes = {
    cpuCount: 2,
    memUsed: 100 << 20,
    memTotal: 1 << 30,
    memCache: 5 << 20,
    diskUsed: 0,
    diskTotal: 10 * 2 ** 30,
  };
  const timestamp = new Date(atS * 1000).toISOString();
  server.metrics.get(id)?.push({ timestamp, timestampUnix: atS, cpuUsedPct, ...sizes });
}

async function run(...argv: string[]): Promise<Result> {
  return await aenv(argv, open());
}

const AT = Date.UTC(2026, 10, 30, 12, 0, 0);

describe("logs", () => {
  it("shows all of them, oldest first, over any number of pages and of entries in one moment", async () => {
    const id = sandbox();
    for (let at = 0; at < 2500; at += 1) log(id, `message ${at}`, AT + Math.floor(at / 400));
    const lines = (await run("logs", id)).stdout.trimEnd().split("\n");
    assert.equal(lines.length, 2500);
    assert.match(lines[0] ?? "", /^2026-11-30 \d\d:00:00\.000 {2}info {3}message 0 {2}logger=sandbox$/);
    assert.ok(lines.every((line, at) => line.includes(`message ${at} `)));
    const objects = JSON.parse((await run("logs", id, "--json")).stdout);
    assert.deepEqual([objects.length, objects[7].message, objects[7].fields.logger], [2500, "message 7", "sandbox"]);
  });

  it("ends although one moment fills more than a page", async () => {
    const id = sandbox();
    for (let at = 0; at < 2100; at += 1) log(id, `m${at}`, AT);
    log(id, "later", AT + 5);
    const { code, stdout } = await run("logs", id);
    assert.deepEqual([code, stdout.includes("m999 "), stdout.includes("later")], [0, true, true]);
  });

  it("lets nothing of the sandbox through that steers a terminal or turns what is read; programs get all of it", async () => {
    const codes = [
      ...Array.from({ length: 0x20 }, (_, code) => code).filter((code) => code !== 0x0a),
      ...Array.from({ length: 0x21 }, (_, at) => 0x7f + at),
      ...[0x202a, 0x202b, 0x202c, 0x202d, 0x202e, 0x2066, 0x2067, 0x2068, 0x2069],
    ];
    const id = sandbox();
    const message = `a${String.fromCharCode(...codes)}b é ש`;
    log(id, message, AT, { logger: message, [message]: "x" });
    const steering = /(?!\n)[\p{Cc}\u202a-\u202e\u2066-\u2069]/u;
    const plain = (await run("logs", id)).stdout;
    assert.doesNotMatch(plain, steering);
    assert.ok(plain.includes(`a${"?".repeat(codes.length)}b é ש`));
    const { stdout } = await run("logs", id, "--json");
    assert.doesNotMatch(stdout, steering);
    assert.match(stdout, /\\u009b.*\\u202e.*b é ש/);
    assert.deepEqual([JSON.parse(stdout)[0].message, JSON.parse(stdout)[0].fields[message]], [message, "x"]);
    const io = open();
    const done = aenv(["logs", "-f", id, "--json"], io);
    await io.shows("stdout", "b é ש");
    server.sandboxes.delete(id);
    const followed = (await done).stdout;
    assert.doesNotMatch(followed, steering);
    assert.equal(JSON.parse(followed).message, message);
  });

  it("CLI-05: follows through a pause and a restart of the server, and ends with the sandbox", async () => {
    const id = sandbox();
    log(id, "first", AT);
    const io = open();
    const done = aenv(["logs", "-f", id], io);
    await io.shows("stdout", "first");
    Object.assign(server.sandboxes.get(id) ?? {}, { state: "paused" });
    server.scripted.set(`GET /v2/sandboxes/${id}/logs`, () => {
      server.scripted.clear();
      return { status: 503, body: { code: 503, message: "The server is being restarted" } };
    });
    log(id, "second", AT);
    await io.shows("stdout", "second");
    server.sandboxes.delete(id);
    log(id, "last", AT + 1);
    const result = await done;
    assert.equal(result.code, 0);
    assert.deepEqual(result.stdout.match(/first|second|last/g), ["first", "second", "last"]);
    assert.match(result.stderr, /has ended\.\n$/);
  });

  it("CLI-05: of an ended one shows what there is and ends; of an unknown one says so; Ctrl-C is 130", async () => {
    const ended = sandbox();
    server.sandboxes.delete(ended);
    log(ended, "kept", AT);
    const kept = await run("logs", "-f", ended);
    assert.deepEqual([kept.code, kept.stdout.includes("kept")], [0, true]);
    for (const argv of [
      ["logs", "inobody"],
      ["logs", "-f", "inobody"],
      ["metrics", "inobody"],
      ["metrics", "-f", "inobody"],
    ]) {
      const unknown = await run(...argv);
      assert.deepEqual([unknown.code, unknown.stdout], [3, ""], argv.join(" "));
      assert.match(unknown.stderr, /^aenv: .+\nhint: `aenv ls`/);
    }
    const nobody = await run("logs", "-f", "i1", "--url", "http://127.0.0.1:1");
    assert.equal(nobody.code, 6, "a server that was never there is not waited for");
    const id = sandbox();
    log(id, "running", AT);
    const io = open();
    const done = aenv(["logs", "-f", id], io);
    await io.shows("stdout", "running");
    io.signal("SIGINT");
    assert.deepEqual([(await done).code, io.text("stderr"), io.listeners("SIGINT")], [130, "", 0]);
  });

  it("CLI-04: followed for a program it is JSON lines, and a reader that leaves is no error", async () => {
    const id = sandbox();
    for (let at = 0; at < 3; at += 1) log(id, `m${at}`, AT + at);
    const io = open();
    const done = aenv(["logs", "-f", id, "--json"], io);
    await io.shows("stdout", "m2");
    const lines = io
      .text("stdout")
      .trimEnd()
      .split("\n")
      .map((line) => JSON.parse(line));
    assert.deepEqual(
      lines.map(({ message }) => message),
      ["m0", "m1", "m2"],
    );
    io.stdout.on("error", () => {});
    io.stdout.destroy();
    log(id, "nobody reads this", AT + 9);
    assert.deepEqual([(await done).code, io.text("stderr")], [0, ""]);
  });
});

describe("metrics", () => {
  it("is a table for people and the API's array for programs", async () => {
    const id = sandbox();
    const none = await run("metrics", id);
    assert.deepEqual([none.code, none.stderr], [0, `There are no readings of ${id} yet.\n`]);
    measure(id, AT / 1000, 12.34);
    measure(id, AT / 1000 + 5, 100);
    const [titles, first, second, ...more] = (await run("metrics", id)).stdout.trimEnd().split("\n");
    assert.match(titles ?? "", /^TIME +CPU +MEMORY +CACHE +DISK$/);
    assert.match(first ?? "", /^2026-11-30 \d\d:00:00 +12\.3% +100 MiB \/ 1 GiB +5 MiB +0 B \/ 10 GiB$/);
    assert.deepEqual([second?.includes("100.0%"), titles?.length === first?.length, more.length], [true, true, 0]);
    assert.equal(JSON.parse((await run("metrics", id, "--json")).stdout)[1].cpuUsedPct, 100);
  });

  it("follows: each reading once, JSON lines for programs, until the sandbox ends", async () => {
    const id = sandbox();
    measure(id, AT / 1000, 1);
    const io = open();
    const done = aenv(["metrics", "-f", id, "--json"], io);
    await io.shows("stdout", '"cpuUsedPct":1,');
    measure(id, AT / 1000 + 1, 2);
    await io.shows("stdout", '"cpuUsedPct":2,');
    server.sandboxes.delete(id);
    assert.equal((await done).code, 0);
    assert.deepEqual(
      io
        .text("stdout")
        .trimEnd()
        .split("\n")
        .map((line) => JSON.parse(line).cpuUsedPct),
      [1, 2],
    );
  });
});

describe("url", () => {
  it("is the sandbox's own host name where the server has a domain", async () => {
    const record = server.add();
    record.domain = "e2b.localhost:8443";
    const { sandboxID: id } = record;
    assert.deepEqual(await run("url", id, "3000").then(({ stdout, stderr }) => [stdout, stderr]), [
      `https://3000-${id}.e2b.localhost:8443\n`,
      "",
    ]);
    const json = JSON.parse((await run("url", id, "3000", "--json")).stdout);
    assert.deepEqual(json, { url: `https://3000-${id}.e2b.localhost:8443`, headers: {} });
  });

  it("else is a curl command with the headers, and the way without them", async () => {
    const { sandboxID: id } = server.add();
    const { stdout, stderr } = await run("url", id, "3000");
    assert.equal(stdout, `curl -H 'E2b-Sandbox-Id: ${id}' -H 'E2b-Sandbox-Port: 3000' ${server.url}/\n`);
    assert.match(stderr, new RegExp(`\`aenv port-forward ${id} 3000\``));
    const json = JSON.parse((await run("url", id, "3000", "--json")).stdout);
    assert.deepEqual(json, { url: `${server.url}/`, headers: { "E2b-Sandbox-Id": id, "E2b-Sandbox-Port": "3000" } });
  });

  it("says what else it takes, and refuses what is no port", async () => {
    const record = server.add("paused");
    record.network = { allowPublicTraffic: false };
    const { stderr } = await run("url", record.sandboxID, "3000");
    assert.match(stderr, /e2b-traffic-access-token/);
    assert.match(stderr, /is paused: `aenv resume /);
    for (const port of ["0", "65536", "http", "-1", "8e1"]) {
      assert.equal((await run("url", record.sandboxID, "--", port)).code, 2, port);
    }
    assert.equal((await run("url", "inobody", "80")).code, 3);
  });
});
