import assert from "node:assert/strict";
import { connect, type Socket } from "node:net";
import type { Duplex } from "node:stream";
import { buffer } from "node:stream/consumers";
import { afterEach, beforeEach, describe, it } from "node:test";
import { happens, ID, World } from "./world.ts";

const UPGRADE = ["Connection: Upgrade", "Upgrade: echo"];
const SWITCHED = ["HTTP/1.1 101 Switching Protocols", ...UPGRADE, "", ""].join("\r\n");

let world: World;
beforeEach(async () => {
  world = await World.open();
});
afterEach(() => world.close());

describe("upgraded connections through the edge", () => {
  it("takes upgraded connections through, both ways", async () => {
    world.service.once("upgrade", (_, socket) => {
      socket.write(SWITCHED);
      socket.pipe(socket);
    });
    world.run();
    const socket = world.dial("GET", ...UPGRADE);
    let seen = "";
    socket.setEncoding("latin1");
    socket.on("data", (chunk) => {
      seen += chunk;
      if (seen.endsWith("\r\n\r\n")) socket.write("ping");
      if (seen.endsWith("ping")) socket.end();
    });
    await happens(socket, "close");
    assert.match(seen, /^HTTP\/1\.1 101 [\s\S]*Upgrade: echo[\s\S]*\r\n\r\nping$/);
  });

  it("NET-01 passes much at once, query and protocol as asked, and a refusal with its reasons", async () => {
    const seen: unknown[] = [];
    world.service.on("upgrade", (incoming, socket) => {
      seen.push([incoming.url, incoming.headers["sec-websocket-protocol"]]);
      if (incoming.url === "/refused") {
        socket.end("HTTP/1.1 403 Not For You\r\nX-Why: taste\r\nContent-Length: 4\r\n\r\nnope");
        return;
      }
      socket.write(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Protocol: b\r\n\r\n",
      );
      socket.pipe(socket);
    });
    world.run();
    const ask = (path: string): Socket => {
      const socket = connect(world.edge.port, "127.0.0.1");
      const fields = ["Connection: keep-alive, Upgrade", "Upgrade: websocket", "Sec-WebSocket-Protocol: a, b"];
      socket.write([`GET ${path} HTTP/1.1`, `Host: ${world.servicePort}-${ID}.x`, ...fields, "", ""].join("\r\n"));
      return socket;
    };
    const large = Buffer.alloc(5 * 1024 * 1024, "0123456789abcdef");
    const socket = ask("/chat?token=a%2Fb%20c&empty=");
    socket.end(large);
    const all = await buffer(socket);
    const headEnd = all.indexOf("\r\n\r\n") + 4;
    assert.match(all.subarray(0, headEnd).toString(), /^HTTP\/1\.1 101 [\s\S]*Sec-WebSocket-Protocol: b\r\n/i);
    assert.ok(all.subarray(headEnd).equals(large));
    const refused = (await buffer(ask("/refused"))).toString();
    assert.match(refused, /^HTTP\/1\.1 403 Not For You\r\n[\s\S]*X-Why: taste\r\n[\s\S]*nope$/);
    assert.deepEqual(seen, [
      ["/chat?token=a%2Fb%20c&empty=", "a, b"],
      ["/refused", "a, b"],
    ]);
  });

  it("ends upgraded connections with their incarnation too", async () => {
    world.service.once("upgrade", (_, socket) => {
      socket.write(SWITCHED);
    });
    world.run();
    const socket = world.dial("GET", ...UPGRADE);
    await happens(socket, "data");
    const reset = happens(socket, "error");
    world.routes.remove(ID);
    assert.equal(((await reset) as NodeJS.ErrnoException).code, "ECONNRESET");
  });

  it("NET-07 a service that ignores the offer gets the body, and the next request is not taken for one", async () => {
    const seen: (string | number | undefined)[] = [];
    world.serve = async (request, response) => {
      seen.push(request.headers["content-length"], (await buffer(request)).length);
      response.end("no upgrade here");
    };
    world.run();
    const socket = world.dial("POST", ...UPGRADE, "Content-Length: 120");
    socket.write("x".repeat(120));
    await happens(socket, "data");
    socket.destroy();
    assert.equal(await (await world.ask("/next")).text(), "no upgrade here");
    assert.deepEqual(seen, ["120", 120, undefined, 0]);
  });

  it("ends with a client that leaves before the service has answered, however it leaves", async () => {
    world.run();
    for (const leave of ["end", "destroy", "resetAndDestroy"] as const) {
      const asked = new Promise<Duplex>((resolve) => world.service.once("upgrade", (_, socket) => resolve(socket)));
      const client = world.dial("GET", ...UPGRADE);
      client.write("early");
      const socket = await asked;
      // Whether by an end or a reset is all the same.
      const gone = new Promise((resolve) => socket.once("end", resolve).once("error", resolve).resume());
      client[leave]();
      await gone;
      socket.destroy();
      client.destroy();
    }
  });

  it("loses nothing of what a client sends before the answer, however much", async () => {
    const early = Buffer.alloc(1024 * 1024, "0123456789");
    const asked = new Promise<Duplex>((resolve) => world.service.once("upgrade", (_, socket) => resolve(socket)));
    world.run();
    const client = world.dial("GET", ...UPGRADE);
    client.write(early);
    const socket = await asked;
    // More than fits into all that holds it back: it must stay with the client.
    await new Promise((resolve) => setTimeout(resolve, 100));
    socket.write(SWITCHED);
    const chunks: Buffer[] = [];
    client.resume().end();
    for await (const chunk of socket) chunks.push(chunk);
    assert.ok(Buffer.concat(chunks).equals(early));
    socket.end();
  });

  it("end with the edge", async () => {
    world.service.on("upgrade", (_, socket) => void socket.on("error", () => {}).write(SWITCHED));
    world.run();
    const client = world.dial("GET", ...UPGRADE);
    await happens(client, "data");
    const closed = happens(
      client.on("error", () => {}),
      "close",
    );
    await world.edge.close();
    await closed;
  });
});
