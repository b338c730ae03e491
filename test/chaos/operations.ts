import { FAULT_POINTS, type FaultPoint } from "#lib/fault";

/** How the server is set. bare: nothing stands ready and nobody is frozen, so that an operation passes its own points alone. ready: as for
 *  everybody, with everything quicker: clones and copies stand ready, who is idle is frozen, and its memory goes to swap. */
export type Setting = "bare" | "ready";

export type State = "running" | "paused" | "gone";

/** What an operation is about. new: it runs, and all of its memory is there. frozen: it runs, and stands still. kept: it is paused, and
 *  its machine stands ready. */
export type Subject = "running" | "new" | "frozen" | "paused" | "kept";

interface Facts {
  readonly under: Setting;
  /** Absent: it is about no sandbox that is there. */
  readonly subject?: Subject;
  readonly after: State;
  /** How long it takes at most, roughly: where a kill at any moment falls. */
  readonly spanMs: number;
  /** The points it passes, in their order; what goes on after the answer comes last. */
  readonly points: readonly FaultPoint[];
}

export const LAUNCH = ["launch.prepared", "launch.started", "launch.answering", "launch.ready"] as const;
const PAUSE = [
  "pause.recorded",
  "pause.frozen",
  "checkpoint.written",
  "pause.captured",
  "pause.synced",
  "pause.paused",
] as const;
const FORKED = [
  "checkpoint.written",
  "fork.captured",
  "create.recorded",
  ...LAUNCH,
  "run.recorded",
  "fork.born",
] as const;
const FORGET = ["kill.released", "kill.forgotten"] as const;

/** Those of a server that takes up what another one left. */
export const RECOVERY = FAULT_POINTS.filter((point) => point.startsWith("recover."));

/** What a round does to the server: through its API, but for `rest`, which comes by itself, and upgrades. */
const FACTS = {
  create: { under: "bare", after: "running", spanMs: 400, points: ["create.recorded", ...LAUNCH, "run.recorded"] },
  pause: { under: "bare", subject: "running", after: "paused", spanMs: 250, points: [...PAUSE, "pause.ended"] },
  resume: {
    under: "bare",
    subject: "paused",
    after: "running",
    spanMs: 400,
    points: ["resume.recorded", ...LAUNCH, "run.recorded", "resume.running", "checkpoint.undescribed"],
  },
  fork: { under: "bare", subject: "running", after: "running", spanMs: 900, points: FORKED },
  snapshot: {
    under: "bare",
    subject: "running",
    after: "running",
    spanMs: 250,
    points: ["checkpoint.written", "snapshot.captured", "snapshot.synced", "snapshot.named"],
  },
  kill: {
    under: "bare",
    subject: "running",
    after: "gone",
    spanMs: 80,
    points: ["kill.recorded", "kill.ended", "kill.stopped", ...FORGET],
  },
  "kill-paused": {
    under: "bare",
    subject: "paused",
    after: "gone",
    spanMs: 40,
    points: ["kill.recorded", "kill.ended", "kill.stopped", "checkpoint.undescribed", ...FORGET],
  },
  build: {
    under: "bare",
    after: "gone",
    spanMs: 2500,
    points: [
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
  },
  /** Of every program of ours: each service is replaced, and the keeper. */
  upgrade: { under: "bare", after: "gone", spanMs: 1200, points: RECOVERY },
  "hot-create": {
    under: "ready",
    after: "running",
    spanMs: 60,
    points: ["clone.thawed", "clone.told", "run.recorded", "launch.prepared", "clone.frozen", "launch.ready"],
  },
  "pause-kept": {
    under: "ready",
    subject: "running",
    after: "paused",
    spanMs: 250,
    points: [...PAUSE, "copy.kept"],
  },
  "pause-frozen": { under: "ready", subject: "frozen", after: "paused", spanMs: 250, points: [...PAUSE, "copy.kept"] },
  "resume-kept": {
    under: "ready",
    subject: "kept",
    after: "running",
    spanMs: 60,
    points: ["copy.thawed", "copy.told", "run.recorded", "resume.running", "checkpoint.undescribed"],
  },
  "kill-kept": {
    under: "ready",
    subject: "kept",
    after: "gone",
    spanMs: 80,
    points: [
      "kill.recorded",
      "kill.ended",
      "copy.stopped",
      "copy.released",
      "kill.stopped",
      "checkpoint.undescribed",
      ...FORGET,
    ],
  },
  "fork-frozen": {
    under: "ready",
    subject: "frozen",
    after: "running",
    spanMs: 900,
    points: ["thaw.begun", "thaw.awake", ...FORKED],
  },
  /** A sandbox that nobody uses is frozen, and its memory goes. */
  rest: {
    under: "ready",
    subject: "new",
    after: "running",
    spanMs: 300,
    points: ["freeze.offered", "freeze.frozen", "reclaim.room", "reclaim.taken", "reclaim.returned"],
  },
  /** The same on a host that has no swap yet. */
  "first-rest": {
    under: "ready",
    subject: "new",
    after: "running",
    spanMs: 300,
    points: ["swap.reserved", "swap.on"],
  },
  /** Traffic for one that is frozen. */
  wake: { under: "ready", subject: "frozen", after: "running", spanMs: 20, points: ["thaw.begun", "thaw.awake"] },
  /** Of aenvd, with a clone and a copy that stand ready. */
  "upgrade-ready": {
    under: "ready",
    subject: "kept",
    after: "paused",
    spanMs: 900,
    points: ["clone.stopped", "clone.released", "copy.stopped", "copy.released", ...RECOVERY],
  },
  /** Of aenvd, with no sandbox and a swap file. */
  "upgrade-empty": { under: "ready", after: "gone", spanMs: 900, points: ["swap.off"] },
} as const satisfies Readonly<Record<string, Facts>>;

export type Operation = keyof typeof FACTS;

export const OPERATIONS = Object.keys(FACTS) as Operation[];

export function factsOf(operation: Operation): Facts {
  return FACTS[operation];
}

/** The server makes swap only where its host has none. */
export function needsHostWithoutSwap(operation: Operation): boolean {
  return operation === "first-rest" || operation === "upgrade-empty";
}

/** The state that an operation's subject has before it; gone: it has none. */
export function before(operation: Operation): State {
  const { subject } = factsOf(operation);
  return subject === undefined ? "gone" : stateOf(subject);
}

/** What the API says of such a one. */
export function stateOf(subject: Subject): "running" | "paused" {
  return subject === "paused" || subject === "kept" ? "paused" : "running";
}
