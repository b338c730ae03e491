import assert from "node:assert/strict";
import { readdir } from "node:fs/promises";
import { after, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { MIB, type Sandbox } from "#domain";
import { armFaults, FAULT_POINTS, type FaultPoint } from "#lib/fault";
import { Bench, SNAPSHOT, until } from "./testing/bench.ts";

/** States of the sandbox that an operation is about; `gone` when there is none. */
type State = Sandbox["state"] | "gone";

interface Operation {
  readonly before: State;
  readonly after: State;
  /** Sandboxes that it may make besides. */
  readonly makes: number;
  /** Clones stand ready, and copies are kept. */
  readonly ready?: true;
  carryOut(bench: Bench, id: string): Promise<unknown>;
}

const OPERATIONS: Readonly<Record<string, Operation>> = {
  create: { before: "gone", after: "gone", makes: 1, carryOut: (bench) => bench.create() },
  pause: { before: "running", after: "paused", makes: 0, carryOut: ({ orchestrator }, id) => orchestrator.pause(id) },
  resume: {
    before: "paused",
    after: "running",
    makes: 0,
    carryOut: ({ orchestrator }, id) => orchestrator.connect(id),
  },
  "a create from a ready clone": {
    before: "gone",
    after: "gone",
    makes: 1,
    ready: true,
    async carryOut(bench) {
      const [before, count] = [new Set(bench.machines()), bench.orchestrator.stats().ready.clones];
      await bench.create();
      await until("another clone", () => bench.machines().some((machine) => !before.has(machine)));
      await until("that one stands ready", () => bench.orchestrator.stats().ready.clones >= count);
    },
  },
  "a pause that keeps a copy": {
    before: "running",
    after: "paused",
    makes: 0,
    ready: true,
    carryOut: ({ orchestrator }, id) => orchestrator.pause(id),
  },
  "a resume of a kept copy": {
    before: "paused",
    after: "running",
    makes: 0,
    ready: true,
    carryOut: ({ orchestrator }, id) => orchestrator.connect(id),
  },
  "a reboot of a kept copy": {
    before: "paused",
    after: "running",
    makes: 0,
    ready: true,
    carryOut: ({ orchestrator }, id) => orchestrator.connect(id, undefined, { reboot: true }),
  },
  "the end of what stands ready": {
    before: "paused",
    after: "paused",
    makes: 0,
    ready: true,
    carryOut: ({ orchestrator }) => orchestrator.endReady(),
  },
  "the rest of an idle one, and its waking": { before: "running", after: "running", makes: 0, carryOut: restAndWake },
  fork: { before: "running", after: "running", makes: 2, carryOut: ({ orchestrator }, id) => orchestrator.fork(id, 2) },
  "capturing one that runs": {
    before: "running",
    after: "running",
    makes: 0,
    carryOut: ({ orchestrator }, id) => orchestrator.snapshot(id, {}),
  },
  kill: { before: "running", after: "gone", makes: 0, carryOut: killWholly },
  "kill of a paused one": {
    before: "paused",
    after: "gone",
    makes: 0,
    carryOut: killWholly,
  },
  "making a snapshot": { before: "gone", after: "gone", makes: 0, carryOut: (bench) => bench.makeSnapshot() },
  "removing a snapshot": {
    before: "gone",
    after: "gone",
    makes: 0,
    carryOut: ({ orchestrator }) => orchestrator.deleteSnapshot("of-nobody"),
  },
};

/** Where a crash can be: the point, and how many times it is passed before. */
interface Place {
  readonly point: FaultPoint;
  readonly passes: number;
}

const AFTER_WORK_MS = 1_000;

after(() => armFaults(undefined));

/** `npm run chaos` does this to real servers; here each place of each operation is reached, twice in a row too, in seconds. */
describe("a crash at every point", { timeout: 300_000 }, () => {
  test("is a crash in one of these operations", async () => {
    const passed = new Set(RECOVERY);
    for (const operation of Object.values(OPERATIONS)) {
      for (const { point } of await placesOf(operation)) passed.add(point);
    }
    assert.deepEqual(
      FAULT_POINTS.filter((point) => !passed.has(point) && !NOT_HERE.has(point)),
      [],
    );
  });

  for (const [name, operation] of Object.entries(OPERATIONS)) {
    test(`of ${name} leaves the state before or after, and nothing else`, async () => {
      const places = await placesOf(operation);
      assert.ok(places.length > 0, "it passes no point");
      for (const place of places) await crashAt(operation, place);
    });

    test(`of ${name}, and at every point of the recovery from it`, async () => {
      const places = await placesOf(operation);
      for (const place of [places[0], places.at(-1)]) {
        for (const again of RECOVERY) if (place !== undefined) await crashAt(operation, place, again);
      }
    });
  }
});

const RECOVERY = FAULT_POINTS.filter((point) => point.startsWith("recover."));

/** Of those that are passed elsewhere; `npm run chaos` passes these too. */
const NOT_HERE: ReadonlySet<FaultPoint> = new Set([
  "build.captured",
  "build.published",
  "snapshot.named",
  "swap.reserved",
  "swap.on",
  "swap.off",
]);

/** A node with a sandbox in the state that the operation begins with, and another of each state. */
async function prepared({
  before,
  ready,
}: Operation): Promise<{ bench: Bench; id: string; others: Map<string, State> }> {
  const bench = await Bench.open({ memoryBudgetMib: ready ? 1024 : 0, swap: { room: async () => true } });
  const [running, paused] = [await bench.create(), await bench.create()];
  await bench.orchestrator.pause(paused.id);
  const others = new Map<string, State>([
    [running.id, "running"],
    [paused.id, "paused"],
  ]);
  const id = before === "gone" ? "" : (await bench.create()).id;
  if (before === "paused") await bench.orchestrator.pause(id);
  await bench.context.background.close();
  if (ready) await until("a clone", () => bench.orchestrator.stats().ready.clones > 0);
  return { bench, id, others };
}

async function placesOf(operation: Operation): Promise<Place[]> {
  const { bench, id } = await prepared(operation);
  const places: Place[] = [];
  armFaults(async (point) => {
    places.push({ point, passes: places.filter((place) => place.point === point).length });
  });
  await operation.carryOut(bench, id);
  await bench.context.background.close();
  armFaults(undefined);
  await bench[Symbol.asyncDispose]();
  return places;
}

async function crashAt(operation: Operation, { point, passes }: Place, again?: FaultPoint): Promise<void> {
  const where = `${point} (${passes})${again === undefined ? "" : `, then ${again}`}`;
  const { bench, id, others } = await prepared(operation);
  await passesUntil(bench, point, passes, () => operation.carryOut(bench, id));
  bench.memory.budgetBytes = 0;
  bench.idleAfterMs = undefined;
  if (again !== undefined) await passesUntil(bench, again, 0, () => bench.start());
  await bench.start();
  await bench.orchestrator.retainSnapshots([SNAPSHOT]);

  const states = new Map<string, State>(bench.orchestrator.list().map((sandbox) => [sandbox.id, sandbox.state]));
  for (const [other, state] of others) assert.equal(states.get(other), state, where);
  if (id !== "") {
    const state = states.get(id) ?? "gone";
    assert.ok(state === operation.before || state === operation.after, `${where}: it is ${state}`);
  }
  const made = [...states.keys()].filter((each) => each !== id && !others.has(each));
  assert.ok(made.length <= operation.makes, `${where}: ${made.length} are new`);
  await assertAllBelongs(bench, where);
  // None is stuck, frozen, or without what it needs.
  for (const [each, state] of states) {
    if (state === "paused") await bench.orchestrator.connect(each);
    await bench.orchestrator.pause(each);
    await bench.orchestrator.kill(each);
  }
  assert.deepEqual(await bench.held(), {}, where);
  assert.deepEqual(await readdir(bench.paths.snapshots), [SNAPSHOT.id], where);
  await bench[Symbol.asyncDispose]();
}

/** Ends the server at a pass of a point; nothing that it was doing goes on. */
async function passesUntil(
  bench: Bench,
  point: FaultPoint,
  passes: number,
  work: () => Promise<unknown>,
): Promise<void> {
  const crashed = Promise.withResolvers<void>();
  let isDead = false;
  const die = (): void => {
    if (!isDead) bench.die();
    isDead = true;
    crashed.resolve();
  };
  let left = passes;
  armFaults((passed) => {
    if (passed !== point || left-- > 0) return Promise.resolve();
    die();
    return new Promise(() => {});
  });
  // What it would have answered, nobody hears. How many clones are made meanwhile is a matter of time: where there are fewer than
  // before it ends a moment after its work.
  void work()
    .then(() => sleep(AFTER_WORK_MS))
    .then(die, () => {});
  await crashed.promise;
  armFaults(undefined);
}

async function assertAllBelongs(bench: Bench, where: string): Promise<void> {
  const held = await bench.held();
  const records = await bench.records();
  const ids = records.map(({ sandbox }) => sandbox.id);
  const running = records.filter(({ sandbox }) => sandbox.state === "running");
  const sorted = (items: readonly unknown[] = []): string[] => items.map(String).sort();
  assert.deepEqual(
    {
      entries: sorted(held.entries),
      leases: sorted(held.leases),
      machines: sorted(held.machines),
      slots: held.slots?.length ?? 0,
      checkpoints: sorted(held.checkpoints),
    },
    {
      entries: sorted(ids),
      leases: sorted(ids.map((id) => `sandbox:${id}`)),
      machines: sorted(running.map(({ machineId }) => machineId)),
      slots: running.length,
      checkpoints: sorted(records.flatMap(({ checkpointOf }) => checkpointOf ?? [])),
    },
    where,
  );
}

/** Also what goes on after the answer. */
async function killWholly({ orchestrator, context }: Bench, id: string): Promise<void> {
  await orchestrator.kill(id);
  await until("its end", () => context.entries.get(id) === undefined);
}

/** Under a server that freezes idle sandboxes, and takes their memory. */
async function restAndWake(bench: Bench, id: string): Promise<void> {
  bench.die();
  bench.idleAfterMs = 60;
  bench.host.memoryBytes = 64 * MIB;
  await bench.start();
  await until("its memory to go", () => bench.host.broughtBack.some((machine) => machine.startsWith(id)));
  await until("its rest", () => bench.stateOf(id) === "frozen");
  await bench.orchestrator.wake(id);
}
