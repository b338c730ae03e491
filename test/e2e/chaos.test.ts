import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { startTicks } from "#lib/proc";
import { Model } from "../chaos/model.ts";
import { SHORT } from "../chaos/plan.ts";
import { isClean, runChaos, summary } from "../chaos/run.ts";
import { World } from "../chaos/world.ts";
import { assertNothingLost } from "./host.ts";
import { until } from "./start.ts";

const SEED = 6;

/** `npm run chaos` does the same for longer, with rounds that a seed makes. */
describe("what dies in the middle of an operation", { timeout: 600_000 }, () => {
  let world: World;
  before(async () => {
    world = await World.open();
  });
  after(() => world[Symbol.asyncDispose]());

  it("loses nothing, doubles nothing, leaves nothing and harms no byte (LIFE, OPS-01, OPS-05)", async () => {
    const said: string[] = [];
    const result = await runChaos(world, {
      seed: SEED,
      kills: Number.POSITIVE_INFINITY,
      plans: SHORT.entries(),
      say: (line) => said.push(line),
    });
    assert.ok(isClean(result), `${summary(result)}\n${said.slice(-3).join("\n")}`);
    // Whether swap is made depends on the host and on servers beside: test/host/swap.test.ts has aenvd die there.
    const unpassed = result.unpassed.filter((point) => !point.startsWith("swap."));
    assert.deepEqual(unpassed, [], "points that no operation passes");
    const unfound = [...result.killed].filter(([, count]) => count === 0);
    assert.deepEqual(unfound, [], "victims that were not there");
  });

  it("on a full disk: pause, create and fork are refused with a reason, a kill is not; nothing is harmed (RES-06)", async () => {
    await world.be("bare");
    const model = new Model(world);
    const [running, other] = [await model.create(), await model.create()];
    const paused = await model.subject("paused", new Set(), () => 0);
    for (const id of [running, other]) await model.write(id);
    const refused = async (method: string, path: string, body?: unknown): Promise<void> => {
      const answer = await world.call<{ message: string }>(method, path, body);
      const said = JSON.stringify(answer);
      assert.ok([429, 503, 507].includes(answer.status), said);
      assert.match(answer.body?.message ?? "", /disk|goes on running/, said);
    };
    try {
      // Full in the middle of a capture, and before one can begin.
      for (const leaveBytes of [1024 * 1024, 0]) {
        world.disk.empty();
        await world.disk.fill(leaveBytes);
        await refused("POST", `/sandboxes/${running}/pause`);
        await refused("POST", `/sandboxes/${running}/fork`, { count: 2 });
        await model.verify(running);
      }
      await refused("POST", "/v2/sandboxes", { templateID: "chaos", timeout: 3600 });
      await refused("POST", `/sandboxes/${paused}/connect`, { timeout: 3600 });
      // Those who come back find no room either.
      const died = ["aenvd", "blobd"].map((name) => world.server.pid(name));
      for (const pid of died) process.kill(pid, "SIGKILL");
      await until("an answer", async () => (await world.call("GET", "/v2/sandboxes")).status === 200);
      for (const id of [running, other]) await model.verify(id);
      await refused("POST", `/sandboxes/${running}/pause`);
      await model.kill(other);
    } finally {
      world.disk.empty();
    }
    await until("the pid files", () =>
      ["aenvd", "blobd"].every((name) => startTicks(world.server.pid(name)) !== undefined),
    );
    await model.verify(running);
    await model.pause(running);
    for (const id of [running, paused]) {
      await model.resume(id);
      await model.verify(id);
    }
    await model.create();
    await assertNothingLost(world.server);
    for (const id of [...model.sandboxes.keys()]) await model.kill(id);
    await assertNothingLost(world.server);
  });
});
