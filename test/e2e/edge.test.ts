import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { connect, type Socket } from "node:net";
import { join } from "node:path";
import { describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import type { Sandbox } from "e2b";
import { ask, to } from "./http.ts";
import { newSandbox } from "./sdk.ts";
import { sharedServer, type TestServer, until } from "./server.ts";

const MIB = 1024 * 1024;
const BROWSER = { "User-Agent": "Mozilla/5.0 (X11; Linux x86_64)", Accept: "text/html,*/*" };

/** Starts a program of `guest/` in the sandbox and waits until it listens. */
async function serve(sandbox: Sandbox, port: number, program: string): Promise<void> {
  await sandbox.files.write(program, readFileSync(join(import.meta.dirname, `guest/${program}.py`), "utf8"));
  await sandbox.commands.run(`exec python3 ${program}`, { background: true, timeoutMs: 0 });
  const server = await sharedServer();
  await until(`port ${port}`, async () => {
    const socket = await open(server, `GET /ready HTTP/1.1\r\nHost: ${port}-${sandbox.sandboxId}.x\r\n\r\n`);
    const isOpen = !(await head(socket)).startsWith("HTTP/1.1 502");
    socket.destroy();
    return isOpen;
  });
}

async function open(server: TestServer, text: string): Promise<Socket> {
  const { hostname, port } = new URL(server.url);
  const socket = connect(Number(port), hostname);
  socket.write(text);
  return socket;
}

/** What has arrived when the head is there, or the connection has ended. */
async function head(socket: Socket): Promise<string> {
  return (await arrived(socket, (bytes) => bytes.includes("\r\n\r\n"))).toString("latin1");
}

async function arrived(socket: Socket, isEnough: (bytes: Buffer) => boolean): Promise<Buffer> {
  let bytes = Buffer.alloc(0);
  while (!isEnough(bytes)) {
    const part: Buffer | null = socket.read();
    if (part !== null) bytes = Buffer.concat([bytes, part]);
    else if (socket.readableEnded || socket.destroyed) break;
    else
      await new Promise<void>((resolve) => {
        for (const event of ["readable", "end", "close", "error"]) socket.once(event, () => resolve());
      });
  }
  return bytes;
}

describe("the edge's own answers", { timeout: 120_000 }, () => {
  it("says exactly what E2B says of an unknown sandbox, by header and by host name", async () => {
    const server = await sharedServer();
    const id = "inosuchsandbox000000";
    const wanted = { sandboxId: id, message: "The sandbox was not found", code: 502 };
    for (const headers of [to(id, 3000), { Host: `3000-${id}.any.domain` }, { Host: `3000-${id}-00000000.x` }]) {
      const answer = await ask(server, { path: "/a?b", headers });
      assert.equal(answer.status, 502);
      assert.equal(answer.headers["content-type"], "application/json; charset=utf-8");
      assert.deepEqual(JSON.parse(answer.text), wanted);
    }
    const page = await ask(server, { path: "/", headers: { ...to(id, 3000), ...BROWSER } });
    assert.equal(page.status, 502);
    assert.equal(page.headers["content-type"], "text/html; charset=utf-8");
    assert.match(page.text, /^<html[\s\S]*Sandbox Not Found[\s\S]*<\/html>$/);
    assert.ok(page.text.includes(id));
    const script = { ...to(id, 3000), ...BROWSER, "Sec-Fetch-Mode": "cors" };
    assert.deepEqual(JSON.parse((await ask(server, { path: "/", headers: script })).text), wanted);
  });

  it("says exactly what E2B says of a closed port", async () => {
    const server = await sharedServer();
    await using sandbox = await newSandbox();
    const wanted = {
      sandboxId: sandbox.sandboxId,
      message: "The sandbox is running but port is not open",
      port: 3000,
      code: 502,
    };
    for (const headers of [to(sandbox.sandboxId, 3000), { Host: `3000-${sandbox.sandboxId}.any.domain` }]) {
      const answer = await ask(server, { path: "/", headers });
      assert.deepEqual([answer.status, JSON.parse(answer.text)], [502, wanted]);
    }
    const page = await ask(server, { path: "/", headers: { ...to(sandbox.sandboxId, 3000), ...BROWSER } });
    assert.match(page.text, /^<html[\s\S]*no service running on port[\s\S]*<\/html>$/);
    const bad = await ask(server, { path: "/", headers: { ...to(sandbox.sandboxId, 0), "E2b-Sandbox-Port": "x" } });
    assert.equal(bad.status, 400);
  });

  it("keeps the node's own agent routes to the node, however they are written", async () => {
    const server = await sharedServer();
    await using sandbox = await newSandbox();
    const { sandboxId } = sandbox;
    for (const path of [
      "/init",
      "//init",
      "/%69nit",
      "/init/",
      "/./init",
      "/init?x=1",
      "/%2finit",
      "/memory",
      "/freeze",
    ]) {
      for (const [headers, prefix] of [
        [to(sandboxId, 49983), ""],
        [{ Host: `49983-${sandboxId}.any.domain` }, ""],
        [{ "x-agentenv-sandbox-id": sandboxId, "x-agentenv-target-port": "49983" }, "/proxy"],
      ] as const) {
        const answer = await ask(server, { method: "POST", path: prefix + path, headers, body: "{}" });
        const body = JSON.parse(answer.text) as Record<string, unknown>;
        assert.equal(answer.status, 404, `${prefix}${path}: ${answer.text}`);
        assert.match(String(body.message), /reserved for the E2B control plane/);
        assert.deepEqual(Object.keys(body).sort(), ["code", "message", "path"]);
      }
    }
    const absolute = await ask(server, {
      method: "POST",
      path: `http://x/init`,
      headers: to(sandboxId, 49983),
      body: "{}",
    });
    assert.equal(absolute.status, 404);
    assert.match(absolute.text, /reserved/);
  });

  it("does not wake a paused sandbox that is not to be woken: 502, and 410 on /proxy", async () => {
    const server = await sharedServer();
    await using sandbox = await newSandbox();
    const { sandboxId } = sandbox;
    await sandbox.pause();
    const plain = await ask(server, { path: "/", headers: to(sandboxId, 3000) });
    const wanted = { sandboxId, message: "The sandbox was not found", code: 502 };
    assert.deepEqual([plain.status, JSON.parse(plain.text)], [502, wanted]);
    const headers = { "x-agentenv-sandbox-id": sandboxId, "x-agentenv-target-port": "3000" };
    const proxied = await ask(server, { path: "/proxy/x", headers });
    assert.equal(proxied.status, 410);
    assert.equal((await sandbox.getInfo()).state, "paused");
  });
});

describe("traffic through the edge", { timeout: 120_000 }, () => {
  it("finds a service by host name, by header and by /proxy, with path and query as they were", async () => {
    const server = await sharedServer();
    await using sandbox = await newSandbox();
    const { sandboxId } = sandbox;
    await serve(sandbox, 8080, "echo_head");
    for (const [headers, path] of [
      [{ Host: `8080-${sandboxId}.any.domain` }, "/a%20b//c?d=%2F"],
      [{ Host: `8080-${sandboxId}` }, "/a%20b//c?d=%2F"],
      [{ Host: `8080-${sandboxId}-00000000.e2b.test:80` }, "/a%20b//c?d=%2F"],
      [to(sandboxId, 8080), "/a%20b//c?d=%2F"],
      [{ "x-agentenv-sandbox-id": sandboxId, "x-agentenv-target-port": "8080" }, "/proxy/a%20b//c?d=%2F"],
    ] as const) {
      const answer = await ask(server, { method: "PATCH", path, headers, body: "x" });
      assert.equal(answer.status, 207);
      assert.equal(answer.headers["x-own"], "1, 2");
      assert.equal(answer.text, "PATCH /a%20b//c?d=%2F");
    }
  });

  it("NET-01 takes a WebSocket through, both ways, and its end too", async () => {
    const server = await sharedServer();
    await using sandbox = await newSandbox();
    await serve(sandbox, 8081, "web_socket");
    const key = "dGhlIHNhbXBsZSBub25jZQ==";
    const socket = await open(
      server,
      `GET /chat HTTP/1.1\r\nHost: 8081-${sandbox.sandboxId}.x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n` +
        `Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: ${key}\r\n\r\n`,
    );
    const first = await arrived(socket, (bytes) => bytes.includes("hello from inside"));
    const text = first.toString("latin1");
    assert.match(text, /^HTTP\/1\.1 101 /);
    assert.match(text, /sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK\+xOo=/i);
    // Two masked text frames in one piece, then one cut in the middle.
    const frames = Buffer.concat([masked("one"), masked("two")]);
    socket.write(frames);
    const echoed = await arrived(socket, (bytes) => bytes.includes("echo two"));
    assert.ok(echoed.includes("echo one"));
    const cut = masked("three");
    socket.write(cut.subarray(0, 4));
    await sleep(50);
    socket.write(cut.subarray(4));
    assert.ok((await arrived(socket, (bytes) => bytes.includes("echo three"))).length > 0);
    socket.write(masked("bye"));
    await arrived(socket, () => false);
    assert.equal(socket.readableEnded, true);
  });

  it("NET-02 streams both ways without holding anything back", async () => {
    const server = await sharedServer();
    await using sandbox = await newSandbox();
    await serve(sandbox, 8082, "stream");
    // Server-sent events: the second is sent only after the first has been seen here.
    const events = await open(server, `GET /events HTTP/1.1\r\nHost: 8082-${sandbox.sandboxId}.x\r\n\r\n`);
    await arrived(events, (bytes) => bytes.includes("data: 1"));
    await ask(server, { path: "/release", headers: to(sandbox.sandboxId, 8082) });
    await arrived(events, (bytes) => bytes.includes("data: 2"));
    events.destroy();
    // A chunked request whose second chunk is sent only after the echo of the first has come.
    const echo = await open(
      server,
      `POST /echo HTTP/1.1\r\nHost: 8082-${sandbox.sandboxId}.x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n`,
    );
    await arrived(echo, (bytes) => bytes.includes("first"));
    echo.write("6\r\nsecond\r\n0\r\n\r\n");
    await arrived(echo, (bytes) => bytes.includes("second"));
    echo.destroy();
  });

  it("carries 200 MB up and down within bounded memory, also for a reader that does not read", async () => {
    const server = await sharedServer();
    await using sandbox = await newSandbox();
    const size = 200 * MIB;
    const edge = server.pid("edge");
    const grown = peakGrowth(edge);
    const part = new Uint8Array(MIB).map((_, at) => (at * 7) % 251);
    let sent = 0;
    const body = new ReadableStream<Uint8Array>({
      pull(controller) {
        if (sent === size) return controller.close();
        sent += MIB;
        controller.enqueue(part);
      },
    });
    const token = await accessToken(server, sandbox.sandboxId);
    const headers = { ...to(sandbox.sandboxId, 49983), "X-Access-Token": token };
    const url = `${server.url}/files?path=/home/user/large`;
    const init = {
      method: "POST",
      body,
      duplex: "half",
      headers: { ...headers, "Content-Type": "application/octet-stream" },
    };
    const up = await fetch(url, init as RequestInit);
    assert.equal(up.status, 200, await up.text());
    const down = await fetch(url, { headers });
    const reader = (down.body as ReadableStream<Uint8Array>).getReader();
    // Whoever sends into the edge now can fill no more than its buffers.
    await sleep(1_000);
    let received = 0;
    for (let next = await reader.read(); !next.done; next = await reader.read()) {
      const wanted = part[received % MIB];
      assert.equal(next.value[0], wanted);
      received += next.value.byteLength;
    }
    assert.equal(received, size);
    const grownMib = grown() / MIB;
    assert.ok(grownMib < 128, `the edge grew by ${grownMib.toFixed(0)} MiB`);
  });
});

async function accessToken(server: TestServer, sandboxId: string): Promise<string> {
  const answer = await ask(server, { path: `/sandboxes/${sandboxId}`, headers: { "X-API-Key": server.apiKey } });
  return (JSON.parse(answer.text) as { envdAccessToken: string }).envdAccessToken;
}

/** How far a process's resident memory has been above what it is now. */
function peakGrowth(pid: number): () => number {
  const field = (name: string): number =>
    Number(new RegExp(`^${name}:\\s+(\\d+) kB`, "m").exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1]) * 1024;
  writeFileSync(`/proc/${pid}/clear_refs`, "5");
  const before = field("VmRSS");
  return () => field("VmHWM") - before;
}

function masked(text: string): Buffer {
  const mask = [1, 2, 3, 4];
  const payload = Buffer.from(text).map((byte, at) => byte ^ (mask[at % 4] ?? 0));
  return Buffer.concat([Buffer.from([0x81, 0x80 | payload.length, ...mask]), payload]);
}
