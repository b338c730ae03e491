import assert from "node:assert/strict";
import { existsSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { type ClientHttp2Session, type ClientHttp2Stream, connect as connectHttp2 } from "node:http2";
import { request } from "node:https";
import { join } from "node:path";
import { buffer, text } from "node:stream/consumers";
import { afterEach, beforeEach, describe, it } from "node:test";
import { connect, type TLSSocket } from "node:tls";
import { until } from "../../e2e/start.ts";
import type { EdgeProcess } from "./process.ts";
import { happens, ID, World } from "./world.ts";

let world: World;
let edge: EdgeProcess;
let ca: Buffer;
beforeEach(async () => {
  world = await World.open();
  edge = await world.startEdge("-tls-listen", "127.0.0.1:0");
  ca = readFileSync(join(world.folder, "tls", "ca.pem"));
});
afterEach(async () => {
  await edge.close();
  await world.close();
});

function host(): string {
  return `${world.servicePort}-${ID}.e2b.test`;
}

function dialTls(protocol: string): Promise<TLSSocket> {
  const socket = connect({
    host: "127.0.0.1",
    port: edge.tlsPort,
    servername: host(),
    ca,
    ALPNProtocols: [protocol],
  });
  return new Promise((resolve, reject) => {
    socket.once("secureConnect", () => resolve(socket));
    // Later on, that a connection is reset is what tests wait for.
    socket.on("error", reject);
  });
}

async function session(): Promise<ClientHttp2Session> {
  const socket = await dialTls("h2");
  assert.equal(socket.alpnProtocol, "h2");
  const client = connectHttp2(`https://${host()}`, { createConnection: () => socket });
  client.on("error", () => {});
  await new Promise((resolve) => client.once("remoteSettings", resolve));
  return client;
}

async function answerOf(stream: ClientHttp2Stream): Promise<{ status: number; text: string }> {
  const head = await new Promise<Record<string, unknown>>((resolve, reject) =>
    stream.once("response", resolve).once("error", reject),
  );
  return { status: Number(head[":status"]), text: await text(stream) };
}

describe("TLS at the edge", () => {
  it("is spoken by a local authority in the data folder that only its owner can use", async () => {
    world.serve = (_, response) => response.end("secured");
    world.run();
    const answer = await new Promise<string>((resolve, reject) => {
      const options = { host: "127.0.0.1", port: edge.tlsPort, servername: host(), ca, headers: { host: host() } };
      request(options, (incoming) => resolve(text(incoming)))
        .once("error", reject)
        .end();
    });
    assert.equal(answer, "secured");
    assert.equal(statSync(join(world.folder, "tls", "authority.pem")).mode & 0o777, 0o600);
    assert.ok(existsSync(join(world.folder, "tls", "ca.pem")));
  });

  it("takes HTTP along when it cannot be had only where it was asked for", async () => {
    writeFileSync(join(world.folder, "tls", "authority.pem"), "no PEM");
    world.serve = (_, response) => response.end("served");
    await world.routes.settled(world.run());
    for (const [address, why] of [
      [`127.0.0.1:${edge.tlsPort}`, /address already in use/],
      ["127.0.0.1:0", /authority\.pem/],
    ] as const) {
      await assert.rejects(world.startEdge("-tls-listen", address), why);
      const without = await world.startEdge("-tls-listen", address, "-tls-optional");
      try {
        assert.match(without.errors.join(), /HTTPS is not served/);
        assert.equal(without.tlsPort, Number.NaN);
        const headers = { "E2b-Sandbox-Id": ID, "E2b-Sandbox-Port": String(world.servicePort) };
        assert.equal(await (await fetch(`http://127.0.0.1:${without.port}/`, { headers })).text(), "served");
      } finally {
        await without.close();
      }
    }
  });

  it("is spoken as soon as what was in its way is gone, where nobody has asked for it", async () => {
    const authority = join(world.folder, "tls", "authority.pem");
    writeFileSync(authority, "no PEM");
    world.serve = (_, response) => response.end("served");
    world.run();
    const later = await world.startEdge("-tls-listen", `127.0.0.1:${edge.tlsPort}`, "-tls-optional");
    try {
      assert.match(later.errors.join(), /HTTPS is not served.*address already in use/);
      await edge.close();
      rmSync(authority);
      await until("HTTPS", async () => {
        ca = readFileSync(join(world.folder, "tls", "ca.pem"));
        return await dialTls("h2").then(
          (socket) => socket.destroy() !== undefined,
          () => false,
        );
      });
      const client = await session();
      assert.deepEqual(await answerOf(client.request({ ":path": "/" })), { status: 200, text: "served" });
      client.destroy();
    } finally {
      await later.close();
    }
  });

  it("carries upgraded connections, each direction to its own end", async () => {
    world.service.once("upgrade", (_, socket) => {
      socket.write("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n");
      void buffer(socket).then((all) => socket.end(`heard ${all.length}`));
    });
    world.run();
    const socket = await dialTls("http/1.1");
    socket.write(`GET / HTTP/1.1\r\nHost: ${host()}\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n`);
    const answered = text(socket);
    await new Promise((resolve) => setTimeout(resolve, 100));
    socket.end(Buffer.alloc(300_000, "x"));
    assert.match(await answered, /^HTTP\/1\.1 101 [\s\S]*heard 300000$/);
  });
});

describe("HTTP/2 at the edge", () => {
  it("carries 300 requests at once on one connection, each with its body", async () => {
    let open = 0;
    let most = 0;
    const all = Promise.withResolvers<void>();
    world.serve = (incoming, response) => {
      open += 1;
      most = Math.max(most, open);
      if (open === 300) all.resolve();
      void text(incoming).then(async (said) => {
        await all.promise;
        response.end(said);
      });
    };
    world.run();
    const client = await session();
    assert.ok((client.remoteSettings.maxConcurrentStreams ?? 0) >= 300);
    const answers = await Promise.all(
      Array.from({ length: 300 }, async (_, at) => {
        const stream = client.request({ ":path": `/${at}`, ":method": "POST" });
        stream.end(`body ${at}`);
        return await answerOf(stream);
      }),
    );
    for (const [at, answer] of answers.entries()) assert.deepEqual(answer, { status: 200, text: `body ${at}` });
    assert.equal(most, 300);
    client.destroy();
  });

  it("NET-02 passes events on as they come, and adds no coding", async () => {
    const next = Promise.withResolvers<void>();
    const seen: (string | undefined)[] = [];
    world.serve = async (incoming, response) => {
      seen.push(incoming.headers["accept-encoding"]);
      response.writeHead(200, { "content-type": "text/event-stream" }).write("data: 1\n\n");
      await next.promise;
      response.end("data: 2\n\n");
    };
    world.run();
    const client = await session();
    const stream = client.request({ ":path": "/events", "accept-encoding": "gzip" });
    stream.setEncoding("utf8");
    const head = await new Promise<Record<string, unknown>>((resolve) => stream.once("response", resolve));
    assert.equal(head["content-encoding"], undefined);
    const first = await new Promise((resolve) => stream.once("data", resolve));
    assert.equal(first, "data: 1\n\n");
    next.resolve();
    assert.equal(await text(stream), "data: 2\n\n");
    assert.deepEqual(seen, ["gzip"]);
    client.destroy();
  });

  it("ends the streams of a sandbox at once when it is gone, others go on, and says that it is gone", async () => {
    world.serve = (_, response) => void response.writeHead(200).write("on");
    world.run();
    world.run("another");
    const client = await session();
    const stream = client.request({ ":path": "/" });
    const other = client.request({
      ":path": "/",
      ":authority": `${world.servicePort}-another.e2b.test`,
    });
    for (const each of [stream, other]) await new Promise((resolve) => each.once("data", resolve));
    const reset = new Promise((resolve) => stream.once("error", resolve));
    world.routes.remove(ID);
    await reset;
    assert.notEqual(stream.rstCode, 0);
    assert.equal(other.closed, false);
    const after = await answerOf(client.request({ ":path": "/health" }));
    const body = { sandboxId: ID, message: "The sandbox was not found", code: 502 };
    assert.deepEqual([after.status, JSON.parse(after.text)], [502, body]);
    client.destroy();
  });

  it("refuses what HTTP/1.1 could not carry on", async () => {
    world.serve = (_, response) => response.end("served");
    world.run();
    const client = await session();
    const stream = client.request({ ":path": "/a b HTTP/1.1" });
    assert.equal((await answerOf(stream)).status, 400);
    client.destroy();
  });

  it("knows the API by its name", async () => {
    await world.startApi((incoming, response) => response.end(String(incoming.headers["x-aenv-scheme"])));
    const client = await session();
    const asked = client.request({ ":path": "/sandboxes", ":authority": "api.e2b.test", "x-aenv-scheme": "forged" });
    assert.deepEqual(await answerOf(asked), { status: 200, text: "https" });
    client.destroy();
  });
});

it("the service sees the end of a TLS client that leaves", async () => {
  const left = Promise.withResolvers<void>();
  world.serve = (_, response) => {
    response.writeHead(200).write("first");
    response.once("close", left.resolve);
  };
  world.run();
  const socket = await dialTls("http/1.1");
  socket.write(`GET / HTTP/1.1\r\nHost: ${host()}\r\n\r\n`);
  await happens(socket, "data");
  socket.destroy();
  await left.promise;
});
