import assert from "node:assert/strict";
import { afterEach, beforeEach, describe, test } from "node:test";
import { newToken, type Snapshot } from "#domain";
import { CheckpointError } from "#driver";
import { readCheckpoint } from "./checkpoints.ts";
import type { SandboxRecord } from "./record.ts";
import { Bench, isKind, SNAPSHOT } from "./testing/bench.ts";

let bench: Bench;

beforeEach(async () => {
  bench = await Bench.open({ readyTimeoutMs: 10_000 });
});
afterEach(() => bench[Symbol.asyncDispose]());

/** Everything under way waits until `open`; `entered` settles with the first that does. */
function gate(): { readonly entered: Promise<void>; readonly open: () => void } {
  const entered = Promise.withResolvers<void>();
  const opened = Promise.withResolvers<void>();
  bench.pace = () => {
    entered.resolve();
    return opened.promise;
  };
  return { entered: entered.promise, open: opened.resolve };
}

describe("a snapshot of a running sandbox", () => {
  test("has the template's variables and not the sandbox's, and knows where it comes from (SNAP-07)", async () => {
    const sandbox = await bench.create({ env: { A: "1", SECRET: "x" }, metadata: { of: "me" } });
    const snapshot = await bench.orchestrator.snapshot(sandbox.id, { A: "template" });
    assert.deepEqual(snapshot.env, { A: "template" });
    assert.deepEqual([snapshot.parentId, snapshot.sandboxId], [SNAPSHOT.id, sandbox.id]);
    assert.equal(JSON.stringify(snapshot).includes("SECRET"), false);
    assert.equal(bench.stateOf(sandbox.id), "running");
    assert.notEqual(await readCheckpoint(bench.paths.snapshot(snapshot.id)), undefined);
    assert.equal(bench.leases.get(`snapshot:${snapshot.id}`), SNAPSHOT.imageDigest);
  });

  test("is started from, captured again, and forked, each knowing its own (SNAP-14)", async () => {
    const first = await bench.create();
    const a = await bench.orchestrator.snapshot(first.id, {});
    const second = await bench.orchestrator.create(first.spec, a);
    const [fork] = await bench.orchestrator.fork(second.id, 1);
    assert.ok(fork !== undefined && "sandbox" in fork);
    const [grandchild] = await bench.orchestrator.fork(fork.sandbox.id, 1);
    assert.ok(grandchild !== undefined && "sandbox" in grandchild);
    const b = await bench.orchestrator.snapshot(grandchild.sandbox.id, {});
    assert.deepEqual([second.snapshotId, b.parentId, b.sandboxId], [a.id, a.id, grandchild.sandbox.id]);
    assert.deepEqual([fork.sandbox.forkedFrom, grandchild.sandbox.forkedFrom], [second.id, fork.sandbox.id]);
    for (const { id } of bench.orchestrator.list()) await bench.orchestrator.kill(id);
    await bench.orchestrator.deleteSnapshot(a.id);
    const last = await bench.orchestrator.create(first.spec, b);
    assert.equal(bench.stateOf(last.id), "running");
    await bench.orchestrator.kill(last.id);
    await bench.orchestrator.deleteSnapshot(b.id);
    assert.deepEqual(await bench.held(), {});
  });

  test("is on stable storage, with its agent, before it is answered", async () => {
    const { id } = await bench.create();
    const synced: string[] = [];
    const { sync } = bench.context.store;
    bench.context.store.sync = async (paths) => {
      await sync(paths);
      synced.push(...paths);
    };
    const snapshot = await bench.orchestrator.snapshot(id, {});
    assert.deepEqual(synced, [bench.paths.snapshot(snapshot.id), bench.paths.agent("agent")]);
  });

  const steps: readonly (readonly [string, () => void])[] = [
    ["the lease", () => bench.script.fail("mount")],
    ["the capture", () => bench.host.failNext("checkpoint", new CheckpointError("no space", true))],
    ["the sync", () => bench.script.fail("sync")],
  ];
  for (const [what, arrange] of steps) {
    test(`that fails at ${what} leaves nothing, and the sandbox running in its machine`, async () => {
      const { id } = await bench.create();
      const before = await bench.held();
      arrange();
      await assert.rejects(bench.orchestrator.snapshot(id, {}), isKind("unavailable"));
      assert.equal(bench.stateOf(id), "running");
      assert.deepEqual(await bench.held(), before);
      await bench.orchestrator.snapshot(id, {});
    });
  }

  test("that ends the machine takes the sandbox along, and leaves nothing", async () => {
    const { id } = await bench.create();
    bench.host.failNext("checkpoint", new CheckpointError("it died", false));
    await assert.rejects(bench.orchestrator.snapshot(id, {}), isKind("not-found"));
    assert.deepEqual(await bench.held(), {});
  });

  test("is none of a paused one", async () => {
    const { id } = await bench.create();
    await bench.orchestrator.pause(id);
    await assert.rejects(bench.orchestrator.snapshot(id, {}), isKind("conflict"));
  });
});

describe("while a sandbox is being captured", () => {
  test("it is reached and connected to at once, paused afterwards, and captured or resumed by nobody else", async () => {
    const { id, endAtMs } = await bench.create();
    const address = bench.orchestrator.routes.get(id)?.address;
    assert.notEqual(address, undefined);
    const { entered, open } = gate();
    const captured = bench.orchestrator.snapshot(id, {});
    await entered;
    assert.equal(bench.stateOf(id), "snapshotting");
    assert.equal(bench.orchestrator.routes.get(id)?.address, address);
    await assert.rejects(bench.orchestrator.snapshot(id, {}), isKind("conflict"));
    await assert.rejects(bench.orchestrator.resume(id), isKind("conflict"));
    const { sandbox, resumed } = await bench.orchestrator.connect(id, 600_000);
    assert.ok(!resumed && sandbox.endAtMs > endAtMs);
    const pauses = Promise.all([bench.orchestrator.pause(id), bench.orchestrator.pause(id)]);
    open();
    await captured;
    await pauses;
    assert.equal(bench.stateOf(id), "paused");
  });

  test("a kill wins, and what was captured is whole", async () => {
    const { id, spec } = await bench.create();
    const { entered, open } = gate();
    const captured = bench.orchestrator.snapshot(id, {});
    await entered;
    const killed = bench.orchestrator.kill(id);
    await assert.rejects(bench.orchestrator.connect(id), isKind("not-found"));
    open();
    const [snapshot] = await Promise.all([captured, killed]);
    assert.equal(bench.stateOf(id), undefined);
    const child = await bench.orchestrator.create(spec, snapshot);
    await bench.orchestrator.kill(child.id);
    await bench.orchestrator.deleteSnapshot(snapshot.id);
    assert.deepEqual(await bench.held(), {});
  });
});

describe("another server", () => {
  async function restart(known: readonly Snapshot[]): Promise<void> {
    await bench.start();
    await bench.orchestrator.retainSnapshots([SNAPSHOT, ...known]);
  }

  test("finds a sandbox that was being captured running, and nothing of the capture", async () => {
    const { id } = await bench.create();
    const { entered, open } = gate();
    const captured = bench.orchestrator.snapshot(id, {}).catch(() => {});
    await entered;
    // An extension is recorded meanwhile, and with it the state.
    await bench.orchestrator.connect(id, 600_000);
    assert.deepEqual(
      (await bench.records()).map(({ sandbox }: SandboxRecord) => sandbox.state),
      ["snapshotting"],
    );
    const dead = bench.orchestrator;
    bench.leases.set(`snapshot:${newToken().slice(0, 20)}`, SNAPSHOT.imageDigest);
    await restart([]);
    assert.equal(bench.stateOf(id), "running");
    const { snapshots, leases } = await bench.held();
    assert.deepEqual([snapshots, leases], [undefined, [`sandbox:${id}`]]);
    open();
    await captured;
    await dead.close();
  });

  test("keeps what a record knows, and removes what was captured and never recorded", async () => {
    const { id, spec } = await bench.create();
    const [kept, lost] = [await bench.orchestrator.snapshot(id, {}), await bench.orchestrator.snapshot(id, {})];
    await bench.orchestrator.close();
    await restart([kept]);
    assert.deepEqual((await bench.held()).snapshots, [kept.id]);
    assert.equal((await bench.orchestrator.create(spec, kept)).snapshotId, kept.id);
    await assert.rejects(bench.orchestrator.create(spec, lost));
  });
});
