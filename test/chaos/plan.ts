import type { FaultPoint } from "#lib/fault";
import { seeded } from "#lib/seeded";
import type { FaultOrder, Victim } from "../../src/server/faults.ts";

/** What a round does to the server through its API. */
export const OPERATIONS = ["create", "pause", "resume", "fork", "snapshot", "kill", "kill-paused", "build"] as const;
export type Operation = (typeof OPERATIONS)[number];

/** One round: an operation, and what happens in the middle of it. */
export interface Plan {
  readonly operation: Operation;
  /** Others at the same time, on other sandboxes. */
  readonly beside?: readonly Operation[];
  /** In the order in which they come due. */
  readonly orders: readonly FaultOrder[];
}

const LAUNCH: readonly FaultPoint[] = ["launch.prepared", "launch.started", "launch.answering", "launch.ready"];

/** The points that an operation passes, in their order; what goes on after the answer comes last. */
const POINTS: Readonly<Record<Operation, readonly FaultPoint[]>> = {
  create: ["create.recorded", ...LAUNCH, "run.recorded"],
  pause: [
    "pause.recorded",
    "pause.frozen",
    "checkpoint.written",
    "pause.captured",
    "pause.synced",
    "pause.paused",
    "pause.ended",
  ],
  resume: ["resume.recorded", ...LAUNCH, "run.recorded", "resume.running", "checkpoint.undescribed"],
  fork: ["checkpoint.written", "fork.captured", "create.recorded", ...LAUNCH, "run.recorded", "fork.born"],
  snapshot: ["checkpoint.written", "snapshot.captured", "snapshot.synced", "snapshot.named"],
  kill: ["kill.recorded", "kill.stopped", "kill.released", "kill.ended", "kill.forgotten"],
  "kill-paused": [
    "kill.recorded",
    "kill.stopped",
    "checkpoint.undescribed",
    "kill.released",
    "kill.ended",
    "kill.forgotten",
  ],
  build: [
    ...LAUNCH,
    "snapshot.started",
    "checkpoint.written",
    "snapshot.captured",
    "snapshot.synced",
    "snapshot.ended",
    "build.captured",
    "build.published",
    "checkpoint.undescribed",
    "snapshot.removed",
  ],
};

/** Those of a server that takes up what another one left. */
export const RECOVERY: readonly FaultPoint[] = [
  "recover.slots",
  "recover.sandbox",
  "recover.sandboxes",
  "recover.machines",
  "recover.done",
];

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
  "kill.stopped",
  "kill.released",
  "kill.ended",
  "snapshot.started",
  "snapshot.captured",
]);

/** Points at which the operation's machine is there. */
const HAS_MACHINE: ReadonlySet<FaultPoint> = new Set([
  ...LAUNCH,
  "run.recorded",
  "pause.recorded",
  "pause.frozen",
  "pause.captured",
  "pause.synced",
  "pause.paused",
  "checkpoint.written",
  "resume.running",
  "fork.captured",
  "fork.born",
  "kill.recorded",
  "snapshot.started",
  "snapshot.captured",
]);

const OTHERS: readonly (readonly Victim[])[] = [
  ["blobd"],
  ["edge"],
  ["keeper"],
  ["aenvd", "blobd"],
  ["aenvd", "keeper"],
  ["keeper", "edge"],
  ["aenvd", "blobd", "edge", "keeper"],
];

/** How long an operation takes at most, roughly: where a kill at any moment falls. */
const SPAN_MS: Readonly<Record<Operation, number>> = {
  create: 400,
  pause: 250,
  resume: 400,
  fork: 900,
  snapshot: 250,
  kill: 80,
  "kill-paused": 40,
  build: 2500,
};

export function pointsOf(operation: Operation): readonly FaultPoint[] {
  return POINTS[operation];
}

/** Each point of each operation once, aenvd dying there; then each of recovery. The rounds every run begins with. */
export const COVER: readonly Plan[] = [
  ...coverOf(OPERATIONS.filter((operation) => operation !== "build")),
  ...coverOf(["build"]),
  ...RECOVERY.map((point, at): Plan => {
    const operation = (["pause", "fork", "resume", "create", "kill"] as const)[at] ?? "pause";
    const first = POINTS[operation].filter((each) => each !== "pause.ended").at(-2) ?? "pause.captured";
    return {
      operation,
      orders: [
        { point: first, kill: ["aenvd"] },
        { point, kill: ["aenvd"] },
      ],
    };
  }),
];

/** What CI has time for: aenvd dies once at each point but those of builds, of which one is cut short and others only pass
 *  theirs; each of the others dies in the middle of something; the runtime during a capture and during a restore. */
export const SHORT: readonly Plan[] = [
  ...coverOf(OPERATIONS.filter((operation) => operation !== "build")),
  { operation: "build", orders: [{ point: "build.captured", kill: ["aenvd"] }] },
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
  { operation: "pause", orders: [{ point: "pause.recorded", kill: ["aenvd"], delayMs: 60 }] },
  { operation: "resume", orders: [{ point: "resume.recorded", kill: ["aenvd"], delayMs: 110 }] },
  { operation: "fork", orders: [{ point: "checkpoint.written", kill: ["aenvd"], delayMs: 170 }] },
  {
    operation: "fork",
    orders: [
      { point: "run.recorded", kill: ["aenvd"] },
      { point: "recover.sandbox", kill: ["aenvd"] },
      { point: "recover.machines", kill: ["aenvd"] },
    ],
  },
];

/** Points that an earlier operation of the list covers are left out. */
function coverOf(operations: readonly Operation[]): Plan[] {
  const seen = new Set<FaultPoint>();
  return operations.flatMap((operation) =>
    POINTS[operation]
      .filter((point) => !seen.has(point) && seen.add(point))
      .map((point): Plan => ({ operation, orders: [{ point, kill: ["aenvd"] }] })),
  );
}

/** What a round does, by seed and round alone, so that it can be done again by itself. */
export function planOf(seed: number, round: number): Plan {
  const random = seeded(Math.imul(seed, 0x9e3779b1) ^ round);
  const pick = <T>(items: readonly T[]): T => items[Math.floor(random() * items.length)] as T;
  // A build takes as long as several of the others.
  const operation = random() < 0.06 ? "build" : pick(OPERATIONS.filter((each) => each !== "build"));
  const point = pick(POINTS[operation]);
  const after = operation === "fork" && random() < 0.4 ? { after: 1 } : {};
  const kind = random();
  if (kind < 0.12 && FAILS.has(point)) return { operation, orders: [{ point, error: "ENOSPC" }] };
  if (kind < 0.24 && HAS_MACHINE.has(point)) {
    // Before its start there is nothing to end yet.
    const delay = point === "launch.prepared" || random() < 0.6 ? { delayMs: Math.round(random() * 120) } : {};
    return { operation, orders: [{ point, kill: ["runtime"], ...delay }] };
  }
  if (kind < 0.44) {
    const first = POINTS[operation][0] as FaultPoint;
    const kill: readonly Victim[] = random() < 0.7 ? ["aenvd"] : pick(OTHERS);
    return { operation, orders: [{ point: first, kill, delayMs: Math.round(random() * SPAN_MS[operation]) }] };
  }
  if (kind < 0.64) return { operation, orders: [{ point, kill: pick(OTHERS) }] };
  const killed: FaultOrder = { point, kill: ["aenvd"], ...(canPassTwice(point) ? after : {}) };
  if (kind < 0.78 && random() < 0.5 && operation !== "build") {
    const beside = [pick(BESIDE), ...(random() < 0.5 ? [pick(BESIDE)] : [])];
    const kill: readonly Victim[] = random() < 0.6 ? ["aenvd"] : pick(OTHERS);
    return { operation, beside, orders: [{ point, kill }] };
  }
  if (kind < 0.78) {
    const twice = random() < 0.3 ? { after: 1 } : {};
    const again = pick(RECOVERY);
    return {
      operation,
      orders: [killed, { point: again, kill: ["aenvd"], ...(again === "recover.sandbox" ? twice : {}) }],
    };
  }
  return { operation, orders: [killed] };
}

const BESIDE: readonly Operation[] = OPERATIONS.filter((operation) => operation !== "build");

/** By the two copies that a fork makes. */
function canPassTwice(point: FaultPoint): boolean {
  return point === "create.recorded" || point === "run.recorded" || LAUNCH.includes(point);
}
