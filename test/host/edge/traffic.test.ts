import assert from "node:assert/strict";
import { get, request } from "node:http";
import { type AddressInfo, connect, createServer as createTcpServer, type Socket } from "node:net";
import { text } from "node:stream/consumers";
import { afterEach, beforeEach, describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { until } from "../../e2e/start.ts";
import { happens, ID, stop, World } from "./world.ts";

let world: World;
beforeEach(async () => {
  world = await World.open();
});
afterEach(() => world.close());

describe("the edge", () => {
  it("hands everything that names no sandbox to the API, with the caller's true address", async () => {
    const response = await fetch(`http://127.0.0.1:${world.edge.port}/sandboxes?x=1`, {
      headers: { "X-Aenv-Peer": "9.9.9.9" },
    });
    assert.deepEqual(await response.json(), { url: "/sandboxes?x=1", peer: ["127.0.0.1"] });
  });

  it("waits for an API that is being restarted", async () => {
    await stop(world.api);
    const response = fetch(`http://127.0.0.1:${world.edge.port}/later`, { method: "POST", body: "once" });
    await sleep(300);
    await world.startApi();
    assert.equal(((await (await response).json()) as { url: string }).url, "/later");
  });

  it("carries a request and its answer whole: method, path, body, headers, status", async () => {
    world.serve = (request, response) => {
      response.writeHead(207, { "x-back": request.headers["x-there"] ?? "", "content-type": "text/x" });
      response.write(Buffer.from(`${request.method} ${request.url} `));
      request.pipe(response);
    };
    world.run();
    const response = await world.ask("/a%2Fb?q=1", { method: "PUT", body: "the body", headers: { "X-There": "é" } });
    assert.deepEqual([response.status, response.headers.get("x-back")], [207, "é"]);
    assert.equal(await response.text(), "PUT /a%2Fb?q=1 the body");
  });

  it("passes a stream on as it comes and tells the service when the client leaves", async () => {
    const left = Promise.withResolvers<void>();
    world.serve = (_, response) => {
      response.writeHead(200);
      response.write("first");
      response.once("close", left.resolve);
    };
    world.run();
    const abort = new AbortController();
    const response = await world.ask("/", { signal: abort.signal });
    const { value } = (await response.body?.getReader().read()) ?? {};
    assert.equal(new TextDecoder().decode(value), "first");
    abort.abort();
    await left.promise;
  });

  it("takes a client that ends its side before its answer for one that has left", async () => {
    const left = Promise.withResolvers<void>();
    world.serve = (incoming, response) => {
      incoming.resume();
      response.once("close", left.resolve);
    };
    await world.routes.settled(world.run());
    const client = world.dial("POST", "Content-Length: 4");
    client.end("body");
    await left.promise;
    client.destroy();
  });

  it("answers as E2B's edge for sandboxes that are not there, paused, or closed", async () => {
    const missing = await world.ask("/", {}, "nosuchsandbox");
    assert.equal(missing.status, 502);
    assert.deepEqual(await missing.json(), {
      sandboxId: "nosuchsandbox",
      message: "The sandbox was not found",
      code: 502,
    });

    world.pause({ autoResume: false });
    assert.equal((await world.ask("/")).status, 502);
    assert.equal((await world.ask("/proxy/x")).status, 410);

    world.run();
    const closed = await world.ask("/", { headers: { "E2b-Sandbox-Port": "1" } });
    assert.equal(closed.status, 502);
    const message = "The sandbox is running but port is not open";
    assert.deepEqual(await closed.json(), { sandboxId: ID, message, port: 1, code: 502 });

    // As a browser navigates; fetch would call itself a script.
    const headers = { "User-Agent": "Mozilla/5.0", "E2b-Sandbox-Id": "gone" };
    const page = await new Promise<string>((resolve) => {
      get({ host: "127.0.0.1", port: world.edge.port, headers, agent: false }, async (answer) =>
        resolve(await text(answer)),
      );
    });
    assert.match(page, /^<html>.*Sandbox Not Found.*gone.*<\/html>$/);
  });

  it("goes on whatever a service says for a status line", async () => {
    let said = "";
    const hostile = createTcpServer((socket) => socket.on("error", () => {}).once("data", () => socket.end(said)));
    await new Promise<void>((resolve) => hostile.listen(0, "127.0.0.1", resolve));
    const headers = { "E2b-Sandbox-Port": String((hostile.address() as AddressInfo).port) };
    world.run();
    for (const [line, status] of [
      ["HTTP/1.1 200 a\x01b", 200],
      ["HTTP/1.1 099 none", 502],
    ] as const) {
      said = `${line}\r\nContent-Length: 2\r\n\r\nok`;
      assert.equal((await world.ask("/", { headers })).status, status);
    }
    await new Promise((resolve) => hostile.close(resolve));
  });

  it("keeps no connection into a sandbox for a client that left in the middle of a body already answered", async () => {
    const closed = Promise.withResolvers<void>();
    world.service.once("connection", (socket) => socket.once("close", closed.resolve));
    world.service.keepAliveTimeout = 600_000;
    world.serve = (_, response) => response.writeHead(401).end("no");
    world.run();
    const socket = world.dial("POST", "Content-Length: 100000");
    socket.write("half");
    await happens(socket, "data");
    socket.destroy();
    await closed.promise;
  });

  it("says that an API request was interrupted, and repeats those that only read", async () => {
    await world.startApi((request) => request.socket.destroy());
    const written = await fetch(`http://127.0.0.1:${world.edge.port}/sandboxes`, { method: "POST", body: "{}" });
    assert.equal(written.status, 500);
    const read = fetch(`http://127.0.0.1:${world.edge.port}/sandboxes`);
    await sleep(50);
    await world.startApi();
    assert.equal((await read).status, 200);
  });

  it("repeats no API request of whose body something is gone, not even one that only reads", async () => {
    let taken = 0;
    await world.startApi((incoming) => {
      taken += 1;
      incoming.once("data", () => incoming.socket.destroy());
    });
    const status = await new Promise((resolve, reject) => {
      const headers = { "Content-Length": 4 };
      const options = { host: "127.0.0.1", port: world.edge.port, path: "/sandboxes", headers, agent: false };
      const asked = request(options, (answer) => resolve(answer.resume().statusCode));
      asked.once("error", reject).end("body");
    });
    assert.deepEqual([status, taken], [500, 1]);
  });

  it("cuts off clients beyond its limit, and says so in the log once", async () => {
    const edge = await world.startEdge("-max-connections", "2");
    const sockets: Socket[] = [];
    const dial = async (): Promise<Socket> => {
      const socket = connect(edge.port, "127.0.0.1").on("error", () => {});
      sockets.push(socket);
      await happens(socket, "connect");
      return socket;
    };
    await dial();
    const leaving = await dial();
    const cutOff = async (): Promise<unknown> => {
      const socket = connect(edge.port, "127.0.0.1").on("error", () => {});
      return await happens(socket.resume(), "close");
    };
    await Promise.all([cutOff(), cutOff()]);
    await until("the log", () => edge.errors.length > 0);
    assert.equal(edge.errors.length, 1);
    assert.match(edge.errors[0] ?? "", /all connections are in use.*ulimit/);
    leaving.destroy();
    const answered = async (): Promise<boolean> => {
      const socket = await dial();
      socket.write("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
      return await Promise.race([happens(socket, "data").then(() => true), happens(socket, "close").then(() => false)]);
    };
    while (!(await answered()));
    for (const socket of sockets) socket.destroy();
    await edge.close();
  });
});
