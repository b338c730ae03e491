import assert from "node:assert/strict";
import { afterEach, beforeEach, describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { AenvError, type Route } from "#domain";
import { happens, ID, World } from "./world.ts";

const WITHIN_MS = 5_000;
const ROUTE: Route = { sandboxId: ID, generation: 1, autoResume: false, address: "127.0.0.1" };

let world: World;
beforeEach(async () => {
  world = await World.open();
});
afterEach(() => world.close());

/** As aenvd does before it freezes a sandbox. */
function offerRest(restAfterMs = 0): Promise<boolean> {
  return world.routes.offerRest({ ...ROUTE, restAfterMs }, WITHIN_MS);
}

async function served(): Promise<void> {
  world.serve = (_, response) => response.end("served");
  world.run();
  assert.equal(await (await world.ask("/")).text(), "served");
}

describe("a sandbox that is to stand still, at the edge", () => {
  it("is not in use after its last answer, and is woken once for all who ask then", async () => {
    await served();
    assert.equal(await offerRest(), true);
    const answers = await Promise.all(Array.from({ length: 10 }, async () => (await world.ask("/")).text()));
    assert.deepEqual(new Set(answers), new Set(["served"]));
    assert.deepEqual(world.roused, [ID]);
  });

  it("is in use while an answer goes on, an upgraded connection is open, or it was used a moment ago", async () => {
    await served();
    assert.equal(await offerRest(60_000), false);
    world.run();

    world.serve = (_, response) => void response.writeHead(200).write("on");
    const answer = await world.ask("/");
    assert.equal(await offerRest(), false);
    await answer.body?.cancel();

    world.service.once("upgrade", (_, upgraded) => {
      upgraded.on("end", () => upgraded.end()).resume();
      upgraded.write("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n");
    });
    world.run();
    const socket = world.dial("GET", "Connection: Upgrade", "Upgrade: echo");
    await happens(socket, "data");
    assert.equal(await offerRest(), false);
    world.run();
    socket.destroy();
    while (!(await offerRest())) world.run();
    assert.deepEqual(world.roused, []);
  });

  it("is in use also where the edge hears of its rest with the whole table", async () => {
    const other = ID.replace(/9$/, "8");
    world.serve = (_, response) => void response.writeHead(200).write("on");
    world.run();
    world.run(other);
    const answers = await Promise.all([world.ask("/"), world.ask("/", {}, other)]);
    await world.feed.close();
    const offers = [ID, other].map((sandboxId) =>
      world.routes.offerRest({ ...ROUTE, sandboxId, restAfterMs: 0 }, WITHIN_MS),
    );
    await world.startFeed();
    assert.deepEqual(await Promise.all(offers), [false, false]);
    await Promise.all(answers.map((answer) => answer.body?.cancel()));
  });

  it("holds up nobody when it is in use", async () => {
    await served();
    assert.equal(await offerRest(60_000), false);
    assert.equal(await (await world.ask("/")).text(), "served");
    assert.deepEqual(world.roused, []);
  });

  it("that cannot be woken is no closed port", async () => {
    await served();
    assert.equal(await offerRest(), true);
    world.rouse = () => Promise.reject(new AenvError("unavailable", "not now"));
    const answer = await world.ask("/");
    assert.equal(answer.status, 503);
    assert.match(await answer.text(), /could not be woken/);
  });

  it("that is paused meanwhile is not resumed by who may not wake it", async () => {
    await served();
    assert.equal(await offerRest(), true);
    world.rouse = async () => void world.pause({ autoResume: false });
    assert.equal((await world.ask("/")).status, 502);
    assert.deepEqual([world.roused, world.woken], [[ID], []]);
  });

  it("that is paused meanwhile is resumed by who may wake it", async () => {
    await served();
    assert.equal(await offerRest(), true);
    world.rouse = async () => void world.pause();
    assert.equal(await (await world.ask("/")).text(), "served");
    assert.deepEqual([world.roused, world.woken], [[ID], [ID]]);
  });

  it("is found standing still by an edge that comes later", async () => {
    await served();
    assert.equal(await offerRest(), true);
    await world.edge.close();
    world.edge = await world.startEdge();
    assert.equal(await (await world.ask("/")).text(), "served");
    assert.deepEqual(world.roused, [ID]);
  });

  it("is awake when aenvd is another one, which has thawed it", async () => {
    await served();
    assert.equal(await offerRest(), true);
    await world.restartAenvd();
    await world.routes.settled(world.run());
    assert.equal(await (await world.ask("/")).text(), "served");
    assert.deepEqual(world.roused, []);
  });

  it("never gets a request while it stands still, however the two meet", async () => {
    let isFrozen = false;
    let rests = 0;
    let met = 0;
    world.serve = (_, response) => {
      if (isFrozen) met += 1;
      response.end("served");
    };
    let freezing = Promise.resolve();
    const freeze = async (): Promise<void> => {
      isFrozen = await offerRest();
      if (isFrozen) rests += 1;
      else world.run();
    };
    // One operation at a time, as aenvd has it.
    world.rouse = async () => {
      await freezing;
      isFrozen = false;
      world.run();
    };
    world.run();
    let isOver = false;
    const clients = Array.from({ length: 4 }, async (_, at) => {
      while (!isOver) {
        assert.equal(await (await world.ask("/")).text(), "served");
        await sleep(at);
      }
    });
    for (let round = 0; round < 300; round += 1) {
      if (!isFrozen) freezing = freeze();
      await freezing;
      await sleep(round % 4);
    }
    isOver = true;
    await Promise.all(clients);
    assert.equal(met, 0);
    assert.ok(rests > 0, "it never stood still");
  });
});
