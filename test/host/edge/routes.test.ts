import assert from "node:assert/strict";
import { createServer, request, type ServerResponse } from "node:http";
import { text } from "node:stream/consumers";
import { afterEach, beforeEach, describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { AenvError } from "#domain";
import { ID, stop, World } from "./world.ts";

let world: World;
beforeEach(async () => {
  world = await World.open();
});
afterEach(() => world.close());

describe("the routes of the edge", () => {
  it("wakes a paused sandbox once for all who ask, and only for who may", async () => {
    world.serve = (_, response) => response.end("awake");
    world.pause({ accessToken: "secret" });
    const agent = { headers: { "E2b-Sandbox-Port": "49983" } };
    assert.equal((await world.ask("/health", agent)).status, 403);
    assert.deepEqual(world.woken, []);
    const answers = await Promise.all(
      [world.ask("/"), world.ask("/"), world.ask("/")].map(async (answer) => (await answer).text()),
    );
    assert.deepEqual(answers, ["awake", "awake", "awake"]);
    assert.deepEqual(world.woken, [ID]);
  });

  it("ends an incarnation's connections at once when it is gone", async () => {
    world.serve = (_, response) => void response.writeHead(200).write("on");
    world.run();
    const response = await world.ask("/");
    const ended = response.text().catch((error: unknown) => error);
    world.routes.remove(ID);
    assert.ok((await ended) instanceof Error);
  });

  it("keeps serving what it knows while aenvd is away, and is not reused under before it knows better", async () => {
    world.serve = (_, response) => response.end("served");
    const revision = world.run();
    assert.equal(await (await world.ask("/")).text(), "served");
    await world.routes.settled(revision);
    await world.feed.close();
    assert.equal(await (await world.ask("/")).text(), "served");

    const removed = world.routes.remove(ID);
    let isSettled = false;
    const settled = world.routes.settled(removed).then(() => {
      isSettled = true;
    });
    await sleep(50);
    assert.equal(isSettled, false);
    await world.startFeed();
    await settled;
    assert.equal((await world.ask("/")).status, 502);
  });

  it("answers a client that is still sending when the sandbox goes, and lets it send to the end", async () => {
    const arrived = Promise.withResolvers<void>();
    world.serve = (request) => void request.once("data", () => arrived.resolve());
    world.run();
    const half = "x".repeat(4 * 1024 * 1024);
    const socket = world.dial("POST", `Content-Length: ${2 * half.length}`);
    socket.write(half);
    await arrived.promise;
    const answered = new Promise<Buffer>((resolve) => socket.once("data", resolve));
    world.routes.remove(ID);
    assert.match((await answered).toString(), /^HTTP\/1\.1 502 [\s\S]*was not found/);
    // As a client that reads only when all is written.
    await new Promise((resolve) => socket.write(half, resolve));
    socket.destroy();
  });

  it("asks again about one it knows as paused: its resume may have been answered already", async () => {
    world.serve = (_, response) => response.end("served");
    await world.feed.close();
    world.routes.subscribe = () => () => {};
    await world.startFeed();
    await world.routes.settled(world.pause({ autoResume: false }));
    world.run(ID, 2);
    assert.equal(await (await world.ask("/")).text(), "served");
  });

  it("sends a request that waits for a port to the next incarnation, never to the last one's address", async () => {
    world.serve = async (request, response) => {
      response.end(`the next${request.headers.upgrade ?? ""}${await text(request)}`);
    };
    world.run(ID, 1, { address: "127.0.0.9" });
    const answer = world.ask("/");
    // An upgrade is the client's until there is somebody to speak to, with its body.
    const upgrade = world.dial("POST", "Connection: Upgrade", "Upgrade: echo", "Content-Length: 5");
    upgrade.write("hello");
    const upgraded = text(upgrade);
    await sleep(80);
    world.run(ID, 2);
    assert.equal(await (await answer).text(), "the next");
    assert.match(await upgraded, /^HTTP\/1.1 200 .*the nextechohello/s);
  });

  it("takes changes in while any number of wakes wait for just that", { timeout: 20_000 }, async () => {
    world.serve = (_, response) => response.end("awake");
    // As a launch does before it takes an address.
    world.wake = async (id) => {
      await world.routes.settled(world.pause({ sandboxId: "another" }));
      world.run(id, 2);
    };
    const ids = Array.from({ length: 200 }, (_, at) => `isandbox${at}`);
    for (const sandboxId of ids) world.pause({ sandboxId });
    const answers = await Promise.all(ids.map(async (id) => (await world.ask("/", {}, id)).text()));
    assert.deepEqual(new Set(answers), new Set(["awake"]));
  });

  it("asks once for a wake that is refused, says so at once, and leaves that sandbox alone for a moment", async () => {
    world.serve = (_, response) => response.end("awake");
    world.pause();
    world.wake = () => Promise.reject(new AenvError("unavailable", "not now"));
    for (const answer of [world.ask("/"), world.ask("/")]) assert.equal((await answer).status, 503);
    assert.match(await (await world.ask("/")).text(), /could not be resumed/);
    assert.deepEqual(world.woken, [ID]);
    world.wake = async (id) => void world.run(id, 2);
    while ((await world.ask("/")).status === 503) await sleep(100);
    assert.deepEqual(world.woken, [ID, ID]);
  });

  it("says why a sandbox is not woken where its clients can do something about it", async () => {
    for (const [kind, status] of [
      ["conflict", 409],
      ["exhausted", 429],
    ] as const) {
      const sandboxId = `i${kind}`;
      world.pause({ sandboxId });
      world.wake = () => Promise.reject(new AenvError(kind, "not now"));
      const answer = await world.ask("/", {}, sandboxId);
      assert.equal(answer.status, status);
      assert.deepEqual(Object.keys((await answer.json()) as object), ["sandboxId", "message", "code"]);
    }
  });

  it("follows the next aenvd, whose revisions start anew", async () => {
    world.serve = (_, response) => response.end("served");
    for (let generation = 1; generation < 5; generation += 1) world.run(ID, generation);
    assert.equal(await (await world.ask("/")).text(), "served");
    await world.restartAenvd();
    await world.routes.settled(world.run("another"));
    assert.equal((await world.ask("/")).status, 502);
    assert.equal(await (await world.ask("/", {}, "another")).text(), "served");
  });
});

describe("acknowledgements", () => {
  /** Of the aenvd that is there now. */
  async function epoch(): Promise<string> {
    const answer = await askFeed("GET", `/routes/of/${ID}`);
    return (JSON.parse(answer.body) as { epoch: string }).epoch;
  }

  function askFeed(method: string, path: string): Promise<{ status: number; body: string }> {
    return new Promise((resolve, reject) => {
      const asked = request({ socketPath: world.routesSocket, method, path, agent: false }, async (answer) => {
        resolve({ status: answer.statusCode ?? 0, body: await text(answer) });
      });
      asked.once("error", reject).end();
    });
  }

  it("count only for the aenvd they were meant for", async () => {
    const before = await epoch();
    await world.restartAenvd();
    world.routes.attach("late");
    let isSettled = false;
    const settled = world.routes.settled(0).then(() => {
      isSettled = true;
    });
    for (const query of [`forwarder=late&epoch=${before}&revision=99`, "forwarder=late&revision=99"])
      assert.equal((await askFeed("POST", `/routes/ack?${query}`)).status, 409);
    assert.equal((await askFeed("POST", `/routes/ack?forwarder=late&epoch=${await epoch()}`)).status, 409);
    assert.equal(isSettled, false);
    const answer = await askFeed("POST", `/routes/ack?forwarder=late&epoch=${await epoch()}&revision=0`);
    assert.equal(answer.status, 204);
    await settled;
  });
});

describe("an answer that comes late", () => {
  it("does not undo a removal that was acknowledged meanwhile", async () => {
    let served = 0;
    world.serve = (_, response) => {
      served += 1;
      response.end("somebody else's");
    };
    await world.feed.close();
    const route = { sandboxId: ID, generation: 1, autoResume: false, address: "127.0.0.1" };
    const say = (response: ServerResponse, line: unknown): void => void response.write(`${JSON.stringify(line)}\n`);
    const asked = Promise.withResolvers<ServerResponse>();
    const acknowledged = Promise.withResolvers<void>();
    const following = Promise.withResolvers<ServerResponse>();
    const aenvd = createServer((incoming, response) => {
      const url = new URL(incoming.url ?? "", "http://feed");
      if (url.pathname === "/routes") {
        say(response, { snapshot: { epoch: "one", revision: 1, routes: [] } });
        following.resolve(response);
      } else if (url.pathname === "/routes/ack") {
        response.writeHead(204).end();
        if (url.searchParams.get("revision") === "3") acknowledged.resolve();
      } else asked.resolve(response);
    });
    await new Promise<void>((resolve) => aenvd.listen(world.routesSocket, resolve));
    const feed = await following.promise;
    const answer = world.ask("/");
    const lookup = await asked.promise;
    say(feed, { change: { revision: 2, sandboxId: ID, route } });
    say(feed, { change: { revision: 3, sandboxId: ID } });
    await acknowledged.promise;
    lookup.end(JSON.stringify({ epoch: "one", revision: 2, route }));
    assert.equal((await answer).status, 502);
    assert.equal(served, 0);
    await stop(aenvd);
    await world.startFeed();
  });
});
