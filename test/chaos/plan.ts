import type { FaultPoint } from "#lib/fault";
import { seeded } from "#lib/seeded";
import type { FaultOrder, MachineVictim, Victim } from "../../src/server/faults.ts";
import { factsOf, LAUNCH, OPERATIONS, type Operation, RECOVERY, type Setting } from "./operations.ts";

/** One round: an operation, and what happens in the middle of it. */
export interface Plan {
  readonly operation: Operation;
  /** Others at the same time, on other sandboxes. */
  readonly beside?: readonly Operation[];
  /** In the order in which they come due. */
  readonly orders: readonly FaultOrder[];
}

/** Where a system call follows that a full disk fails. */
const FAILS: ReadonlySet<FaultPoint> = new Set([
  "create.recorded",
  ...LAUNCH,
  "run.recorded",
  "pause.recorded",
  "pause.frozen",
  "checkpoint.written",
  "pause.captured",
  "pause.synced",
  "resume.recorded",
  "fork.captured",
  "kill.ended",
  "kill.stopped",
  "kill.released",
  "snapshot.started",
  "snapshot.captured",
  "clone.frozen",
  "clone.thawed",
  "copy.thawed",
  "reclaim.room",
  "swap.reserved",
]);

/** Points at which the operation's machine is there, and whether its agent is awake. */
const MACHINE_AT: Readonly<Partial<Record<FaultPoint, "awake" | "asleep">>> = {
  "launch.prepared": "asleep",
  "launch.started": "asleep",
  "launch.answering": "awake",
  "launch.ready": "awake",
  "run.recorded": "awake",
  "pause.recorded": "awake",
  "pause.frozen": "asleep",
  "pause.captured": "asleep",
  "pause.synced": "asleep",
  "pause.paused": "asleep",
  "checkpoint.written": "asleep",
  "resume.running": "awake",
  "fork.captured": "awake",
  "fork.born": "awake",
  "kill.recorded": "awake",
  "snapshot.started": "awake",
  "snapshot.captured": "awake",
  "freeze.offered": "awake",
  "freeze.frozen": "asleep",
  "reclaim.room": "asleep",
  "reclaim.taken": "asleep",
  "reclaim.returned": "asleep",
  "thaw.begun": "asleep",
  "thaw.awake": "awake",
  "clone.frozen": "asleep",
  "clone.thawed": "awake",
  "clone.told": "awake",
  "copy.kept": "asleep",
  "copy.thawed": "awake",
  "copy.told": "awake",
};

/** Those after which the runtime's command follows that captures or restores. */
const COMMAND_AT: ReadonlySet<FaultPoint> = new Set(["launch.prepared", "pause.frozen"]);

const SERVICES: readonly (readonly Victim[])[] = [
  ["blobd"],
  ["edge"],
  ["keeper"],
  ["aenvd", "blobd"],
  ["aenvd", "keeper"],
  ["keeper", "edge"],
  ["aenvd", "blobd", "edge", "keeper"],
];

const BARE = OPERATIONS.filter((operation) => factsOf(operation).under === "bare");
const READY = OPERATIONS.filter((operation) => factsOf(operation).under === "ready");
/** A build takes as long as several of the others. */
const RARE: readonly Operation[] = ["build", "upgrade"];

/** Each point of each operation once, aenvd dying there; then each of recovery. The rounds every run begins with. */
export const COVER: readonly Plan[] = [
  ...coverOf(BARE.filter((operation) => !RARE.includes(operation))),
  ...coverOf(["build"]),
  ...RECOVERY.map((point, at): Plan => {
    const operation = (["pause", "fork", "resume", "create", "kill"] as const)[at] ?? "pause";
    const first =
      factsOf(operation)
        .points.filter((each) => each !== "pause.ended")
        .at(-2) ?? "pause.captured";
    return {
      operation,
      orders: [
        { point: first, kill: ["aenvd"] },
        { point, kill: ["aenvd"] },
      ],
    };
  }),
  { operation: "upgrade", orders: [{ point: "recover.machines", kill: ["keeper"] }] },
  ...coverOf(READY),
];

/** What CI has time for: all points are passed but those of swap, which needs a host without any, and aenvd dies at those here, once
 *  in each operation; at every one it does so in `src/orchestrator/crash.test.ts` and in the long run. Each of the others dies in
 *  the middle of something; of a machine what there is, and the runtime during a capture and during a restore. */
export const SHORT: readonly Plan[] = [
  ...diesIn("create", "launch.prepared", "run.recorded"),
  ...diesIn("pause", "pause.frozen", "pause.synced", "pause.paused"),
  ...diesIn("resume", "launch.ready", "resume.running", "checkpoint.undescribed"),
  ...diesIn("fork", "fork.captured", "fork.born"),
  ...diesIn("snapshot", "snapshot.captured", "snapshot.named"),
  ...diesIn("kill", "kill.recorded", "kill.released"),
  ...diesIn("kill-paused", "checkpoint.undescribed"),
  ...diesIn("build", "build.captured"),
  { operation: "build", orders: [{ point: "snapshot.captured", kill: ["blobd"] }] },
  { operation: "pause", orders: [{ point: "pause.frozen", kill: ["runtime"] }] },
  { operation: "pause", orders: [{ point: "pause.frozen", kill: ["runtime"], delayMs: 15 }] },
  { operation: "resume", orders: [{ point: "launch.prepared", kill: ["runtime"], delayMs: 15 }] },
  { operation: "fork", orders: [{ point: "launch.prepared", kill: ["runtime"], delayMs: 30 }] },
  { operation: "pause", orders: [{ point: "pause.captured", kill: ["blobd"] }] },
  { operation: "fork", orders: [{ point: "launch.prepared", kill: ["keeper"] }] },
  { operation: "resume", orders: [{ point: "launch.answering", kill: ["edge"] }] },
  { operation: "pause", orders: [{ point: "pause.synced", kill: ["aenvd", "blobd", "edge", "keeper"] }] },
  { operation: "create", orders: [{ point: "run.recorded", error: "ENOSPC" }] },
  { operation: "fork", orders: [{ point: "checkpoint.written", kill: ["aenvd"], delayMs: 170 }] },
  {
    operation: "fork",
    orders: [
      { point: "run.recorded", kill: ["aenvd"] },
      { point: "recover.sandbox", kill: ["aenvd"] },
      { point: "recover.machines", kill: ["aenvd"] },
    ],
  },
  { operation: "pause", orders: [{ point: "pause.frozen", kill: ["command"], delayMs: 5 }] },
  { operation: "snapshot", orders: [{ point: "snapshot.captured", kill: ["gofer"] }] },
  { operation: "fork", orders: [{ point: "fork.captured", kill: ["agent"] }] },
  ...diesIn("hot-create", "clone.told"),
  ...diesIn("resume-kept", "copy.told"),
  ...diesIn("kill-kept", "copy.stopped"),
  ...diesIn("wake", "thaw.awake"),
  { operation: "pause-kept", orders: [{ point: "copy.kept", kill: ["runtime"] }] },
  { operation: "rest", orders: [{ point: "reclaim.room", kill: ["aenvd"], delayMs: 20 }] },
  ...diesIn("rest", "reclaim.returned"),
  ...diesIn("upgrade-ready", "clone.released"),
];

function diesIn(operation: Operation, ...points: readonly FaultPoint[]): Plan[] {
  return points.map((point) => ({ operation, orders: [{ point, kill: ["aenvd"] }] }));
}

/** Points that an earlier operation of the list covers are left out. */
function coverOf(operations: readonly Operation[]): Plan[] {
  const seen = new Set<FaultPoint>();
  return operations.flatMap((operation) =>
    factsOf(operation)
      .points.filter((point) => !seen.has(point) && seen.add(point))
      .flatMap((point) => diesIn(operation, point)),
  );
}

/** So many rounds in a row are under one setting: a change of it takes as long as a round. */
const BLOCK = 25;

/** What a round does, by seed and round alone, so that it can be done again by itself. */
export function planOf(seed: number, round: number): Plan {
  const dice = new Dice(seeded(Math.imul(seed, 0x9e3779b1) ^ round));
  const under: Setting = Math.floor(round / BLOCK) % 2 === 0 ? "bare" : "ready";
  const operations = under === "bare" ? BARE : READY;
  const isRare = under === "bare" && dice.isBelow(0.08);
  const operation = dice.pick(operations.filter((each) => RARE.includes(each) === isRare));
  const { points, spanMs } = factsOf(operation);
  const point = dice.pick(points);
  const kind = dice.roll();
  if (kind < 0.1 && FAILS.has(point)) return { operation, orders: [{ point, error: "ENOSPC" }] };
  if (kind < 0.28 && MACHINE_AT[point] !== undefined) return { operation, orders: [machineDies(point, dice)] };
  if (operation.startsWith("upgrade")) return { operation, orders: [{ point, kill: dice.pick(UPGRADE_VICTIMS) }] };
  if (kind < 0.42) {
    const first = points[0] as FaultPoint;
    return { operation, orders: [{ point: first, kill: dice.services(0.7), delayMs: dice.upTo(spanMs) }] };
  }
  if (kind < 0.56) return { operation, orders: [{ point, kill: dice.pick(SERVICES) }] };
  if (kind < 0.66 && isBeside(operation)) {
    const others = operations.filter(isBeside);
    const beside = [dice.pick(others), ...(dice.isBelow(0.5) ? [dice.pick(others)] : [])];
    return { operation, beside, orders: [{ point, kill: dice.services(0.6) }] };
  }
  const after = canPassTwice(operation, point) && dice.isBelow(0.4) ? { after: 1 } : {};
  const again = Array.from({ length: dice.upTo(4) }, () => diesAgain(dice));
  return { operation, orders: [{ point, kill: ["aenvd"], ...after }, ...again] };
}

/** A whole server that dies is not started again by who waits for its upgrade. */
const UPGRADE_VICTIMS: readonly (readonly Victim[])[] = [
  ["aenvd"],
  ...SERVICES.filter((victims) => victims.length < 4),
];

/** What comes by itself, or takes the server away, is a round of its own. */
function isBeside(operation: Operation): boolean {
  return !RARE.includes(operation) && !operation.endsWith("rest") && !operation.startsWith("upgrade");
}

/** Who goes with aenvd while it comes back: mostly nobody, never the keeper, whose return takes longest. */
const WITH_AENVD: readonly (readonly Victim[])[] = [
  ["aenvd"],
  ["aenvd"],
  ["aenvd", "blobd"],
  ["aenvd", "edge"],
  ["aenvd", "blobd", "edge"],
];

/** Of the server that comes back. */
function diesAgain(dice: Dice): FaultOrder {
  const point = dice.pick(RECOVERY);
  const second = point === "recover.sandbox" && dice.isBelow(0.3) ? { after: 1 } : {};
  return { point, kill: dice.pick(WITH_AENVD), ...second };
}

function machineDies(point: FaultPoint, dice: Dice): FaultOrder {
  const victims: MachineVictim[] = ["runtime", "runtime", "gofer"];
  if (MACHINE_AT[point] === "awake") victims.push("agent");
  if (COMMAND_AT.has(point)) victims.push("command");
  const victim = dice.pick(victims);
  // Before its start there is nothing to end yet.
  const isLater = point === "launch.prepared" || victim === "command" || (victim === "runtime" && dice.isBelow(0.6));
  return { point, kill: [victim], ...(isLater && { delayMs: dice.upTo(120) }) };
}

/** By the two copies that a fork makes. */
function canPassTwice(operation: Operation, point: FaultPoint): boolean {
  return operation === "fork" && (/^(create|run)\.recorded$/.test(point) || point.startsWith("launch."));
}

/** Chances. */
class Dice {
  readonly roll: () => number;

  /** `roll`: from 0 on, below 1. */
  constructor(roll: () => number) {
    this.roll = roll;
  }

  isBelow(share: number): boolean {
    return this.roll() < share;
  }

  pick<T>(items: readonly T[]): T {
    return items[Math.floor(this.roll() * items.length)] as T;
  }

  /** From 0 to `most`. */
  upTo(most: number): number {
    return Math.round(this.roll() * most);
  }

  /** aenvd with this chance, else others, with or without it. */
  services(share: number): readonly Victim[] {
    return this.isBelow(share) ? ["aenvd"] : this.pick(SERVICES);
  }
}
