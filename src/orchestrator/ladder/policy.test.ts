import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { afterHit, afterMiss, type Demand, NO_DEMAND, wanted } from "./demand.ts";
import { type Action, leastUsed, plan, type Resident, type Room, type Situation, type Wish } from "./policy.ts";

const MINUTE_MS = 60_000;
const PLENTY: Room = {
  budgetBytes: 1000,
  availableBytes: 10_000,
  reserveBytes: 100,
  slotsFree: 50,
  slotsReserved: 5,
};

function clone(id: string, poolId: string, usedAtMs = 0, bytes = 100): Resident {
  return { id, poolId, bytes, usedAtMs };
}

function copy(id: string, usedAtMs = 0, bytes = 100): Resident {
  return { id, bytes, usedAtMs };
}

function wish(poolId: string, peak: number, change: Partial<Wish> = {}, usedAtMs = 0): Wish {
  return { poolId, demand: { peak, usedAtMs }, cloneBytes: 100, making: 0, mayGrow: true, ...change };
}

function planned(change: Partial<Omit<Situation, "room">> & { readonly room?: Partial<Room> }): string[] {
  const room = { ...PLENTY, ...change.room };
  return plan({ nowMs: 0, residents: [], wishes: [], ...change, room }).map(told);
}

function told(action: Action): string {
  return action.kind === "evict" ? `evict ${action.id}` : `refill ${action.poolId} ${action.count}`;
}

describe("demand", () => {
  const first = afterMiss(NO_DEMAND, 0, 8);

  test("a template that nobody has started is wanted by nobody; after its first start one clone is", () => {
    assert.equal(wanted(NO_DEMAND, 0), 0);
    assert.equal(wanted(first, 0), 1);
  });

  test("each start that found none raises it, up to a most; one that found one leaves it", () => {
    let demand: Demand = NO_DEMAND;
    const seen = Array.from({ length: 5 }, () => {
      demand = afterMiss(demand, 0, 3);
      return wanted(demand, 0);
    });
    assert.deepEqual(seen, [1, 2, 3, 3, 3]);
    assert.equal(wanted(afterHit(demand, 0), 0), 3);
  });

  test("it is halved while nobody comes, the last one stays for an hour", () => {
    const demand = { peak: 16, usedAtMs: 0 };
    const at = [0, 0.9, 1, 2, 3, 4, 5, 59, 60].map((minute) => wanted(demand, minute * MINUTE_MS));
    assert.deepEqual(at, [16, 16, 8, 4, 2, 1, 1, 1, 0]);
  });

  test("whoever comes late takes it up from where it was", () => {
    const late = 2 * MINUTE_MS;
    assert.equal(wanted(afterMiss({ peak: 16, usedAtMs: 0 }, late, 32), late), 5);
  });
});

describe("the policy", () => {
  const cases: readonly (readonly [what: string, Parameters<typeof planned>[0], expected: string[]])[] = [
    ["nothing is there and nothing wanted", {}, []],
    ["what is wanted and not there is made", { wishes: [wish("a", 2)] }, ["refill a 2"]],
    ["what is being made is not made twice", { wishes: [wish("a", 2, { making: 2 })] }, []],
    ["what could not be made rests", { wishes: [wish("a", 2, { mayGrow: false })] }, []],
    [
      "clones above what is wanted go",
      { residents: [clone("1", "a"), clone("2", "a"), clone("3", "a")], wishes: [wish("a", 1)] },
      ["evict 2", "evict 3"],
    ],
    ["clones that nobody wants go", { residents: [clone("1", "a")] }, ["evict 1"]],
    ["copies stay as long as there is room", { residents: [copy("1", -1e9)] }, []],
    [
      "above the budget the oldest goes",
      { residents: [copy("1", 1, 400), copy("2", 3, 400), copy("3", 2, 400)] },
      ["evict 1"],
    ],
    [
      "a copy of long ago makes room for a clone of now, but only by going first",
      { residents: [copy("1", 1, 950)], wishes: [wish("a", 1, {}, 2)] },
      ["evict 1", "refill a 1"],
    ],
    [
      "a clone of long ago takes nothing from a copy of now",
      { residents: [copy("1", 2, 950)], wishes: [wish("a", 1)] },
      [],
    ],
    ["one that is larger than all there is goes alone", { residents: [copy("1", 2, 1001), copy("2", 1)] }, ["evict 1"]],
    [
      "without a budget there is nothing",
      { room: { budgetBytes: 0 }, residents: [copy("1")], wishes: [wish("a", 1)] },
      ["evict 1"],
    ],
    [
      "when the host runs out of memory the oldest go first",
      { room: { availableBytes: 0 }, residents: [copy("1", 1), copy("2", 2)] },
      ["evict 1"],
    ],
    [
      "near that, nothing new is made",
      { room: { availableBytes: 250 }, residents: [copy("1")], wishes: [wish("a", 1)] },
      [],
    ],
    [
      "slots run short: what holds them goes",
      { room: { slotsFree: 4 }, residents: [copy("1", 1), copy("2", 2)] },
      ["evict 1"],
    ],
    ["the last slots are left to requests", { room: { slotsFree: 6 }, wishes: [wish("a", 4)] }, ["refill a 1"]],
    ["those being made have their room", { room: { budgetBytes: 250 }, wishes: [wish("a", 3, { making: 2 })] }, []],
  ];
  for (const [what, situation, expected] of cases) {
    test(what, () => assert.deepEqual(planned(situation), expected));
  }

  test("whatever is there: what stays fits, requests keep their slots, and it comes to rest", () => {
    for (let seed = 1; seed <= 3000; seed += 1) {
      let situation = anySituation(seed);
      const story = [JSON.stringify(situation)];
      for (let round = 0; ; round += 1) {
        const actions = plan(situation);
        story.push(actions.map(told).join(", "));
        if (actions.length === 0) break;
        assert.ok(round < 10, `seed ${seed} does not come to rest: ${story.join(" → ")}`);
        const after = carryOut(situation, actions);
        const heldBytes = sum(after.residents.map(({ bytes }) => bytes));
        const { room } = situation;
        const made = actions.some(({ kind }) => kind === "refill");
        assert.ok(heldBytes === 0 || heldBytes <= room.budgetBytes, `seed ${seed}: ${story.join(" → ")}`);
        assert.ok(!made || after.room.availableBytes >= room.reserveBytes, `seed ${seed}: ${story.join(" → ")}`);
        assert.ok(!made || after.room.slotsFree >= room.slotsReserved, `seed ${seed}: ${story.join(" → ")}`);
        situation = after;
      }
    }
  });

  test("the one used longest ago goes first", () => {
    assert.equal(leastUsed([copy("1", 5), clone("2", "a", 3), copy("3", 4)])?.id, "2");
    assert.equal(leastUsed([]), undefined);
  });
});

function sum(numbers: readonly number[]): number {
  return numbers.reduce((total, one) => total + one, 0);
}

/** What is there when all of it has been done, with what was being made before. */
function carryOut({ nowMs, room, residents, wishes }: Situation, actions: readonly Action[]): Situation {
  const gone = residents.filter(({ id }) => actions.some((action) => action.kind === "evict" && action.id === id));
  const made = wishes.flatMap(({ poolId, making, cloneBytes, demand: { usedAtMs } }) => {
    const refill = actions.find((action) => action.kind === "refill" && action.poolId === poolId);
    const count = making + (refill?.kind === "refill" ? refill.count : 0);
    return Array.from({ length: count }, () => clone(`new ${newIds++}`, poolId, usedAtMs, cloneBytes));
  });
  const freedBytes = sum(gone.map(({ bytes }) => bytes)) - sum(made.map(({ bytes }) => bytes));
  return {
    nowMs,
    residents: [...residents.filter((one) => !gone.includes(one)), ...made],
    wishes: wishes.map((one) => ({ ...one, making: 0 })),
    room: {
      ...room,
      availableBytes: room.availableBytes + freedBytes,
      slotsFree: room.slotsFree + gone.length - made.length,
    },
  };
}

let newIds = 0;

/** The same for the same seed. */
function anySituation(seed: number): Situation {
  let state = seed * 2654435761;
  const below = (limit: number): number => {
    state = (state * 1103515245 + 12345) % 2147483648;
    return Math.floor((state / 2147483648) * limit);
  };
  const snapshots = ["a", "b", "c"].slice(0, below(4));
  const wishes = snapshots.map((id) =>
    wish(id, below(5), { making: 0, cloneBytes: 50 + below(100), mayGrow: below(4) > 0 }, -below(10 * MINUTE_MS)),
  );
  const residents = Array.from({ length: below(12) }, (_, at) => {
    const of = wishes[below(5)];
    const bytes = 10 + below(300);
    return of === undefined
      ? copy(`${at}`, -below(10 * MINUTE_MS), bytes)
      : clone(`${at}`, of.poolId, of.demand.usedAtMs, bytes);
  });
  const room = {
    budgetBytes: below(2) * below(2000),
    availableBytes: below(1500),
    reserveBytes: below(300),
    slotsFree: below(20),
    slotsReserved: below(6),
  };
  return { nowMs: 0, room, residents, wishes };
}
