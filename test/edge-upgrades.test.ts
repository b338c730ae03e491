import assert from "node:assert/strict";
import type { Duplex } from "node:stream";
import { afterEach, beforeEach, describe, it } from "node:test";
import { happens, ID, World } from "./edge-world.ts";

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

  it("ends upgraded connections with their incarnation too", async () => {
    world.service.once("upgrade", (_, socket) => {
      socket.write(SWITCHED);
    });
    world.run();
    const socket = world.dial("GET", ...UPGRADE);
    await happens(socket, "data");
    const closed = happens(socket, "close");
    world.routes.remove(ID);
    await closed;
  });

  it("sends an upgrade without the length of a body it does not send", async () => {
    const seen: (string | undefined)[] = [];
    world.serve = (request, response) => {
      seen.push(request.headers["content-length"]);
      response.end("no upgrade here");
    };
    world.run();
    const socket = world.dial("GET", ...UPGRADE, "Content-Length: 120");
    await happens(socket, "data");
    socket.destroy();
    // The next one on that connection is not taken for the body.
    assert.equal(await (await world.ask("/next")).text(), "no upgrade here");
    assert.deepEqual(seen, [undefined, undefined]);
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
