import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, afterEach, beforeEach, type TestContext, test } from "node:test";
import type { LogEntry } from "#domain";
import type { Guest, TelemetryAnswer } from "#guest";
import { createLogger } from "#lib/log";
import { Telemetry } from "#telemetry";
import { Collector } from "./collector.ts";
import { Entries } from "./entries.ts";
import { Entry, type Incarnation } from "./entry.ts";
import { onEnd } from "./machine-end.ts";
import type { SandboxRecord } from "./record.ts";
import { until } from "./testing/bench.ts";

const READING = {
  cpuCount: 1,
  cpuUsedPct: 2,
  memUsedBytes: 3,
  memTotalBytes: 4,
  memCacheBytes: 5,
  diskUsedBytes: 6,
  diskTotalBytes: 7,
};
type Question = Parameters<Guest["telemetry"]>[1];
type Answers = (question: Question) => Promise<TelemetryAnswer | undefined>;

const dirs: string[] = [];
let telemetry: Telemetry;
let entries: Entries;
let collector: Collector;
let logged: string[];

beforeEach(async () => {
  const dir = await mkdtemp(join(tmpdir(), "aenv-collector-"));
  dirs.push(dir);
  logged = [];
  telemetry = await Telemetry.open(dir, Date.now);
  entries = new Entries();
  collector = new Collector({ telemetry, entries, logger: createLogger("info", (line) => logged.push(line)) });
});
afterEach(() => collector.close());
after(async () => {
  for (const dir of dirs) await rm(dir, { recursive: true, force: true });
});

function entry(idUs: number): LogEntry {
  return { idUs, level: "info", logger: "process", message: `m${idUs}`, fields: {} };
}

/** A running sandbox whose agent answers so; `isOver`: its machine has ended. */
function running(id: string, answers: Answers, { isOver = false } = {}): { entry: Entry; incarnation: Incarnation } {
  const record = { initKey: "k", sandbox: { id, state: "running" } } as SandboxRecord;
  const sandbox = new Entry(record);
  const guest = {
    telemetry: (key: string, question: Question) => {
      assert.equal(key, "k");
      return answers(question);
    },
  };
  const machine = { exited: isOver ? Promise.resolve({ reason: "crashed" }) : new Promise(() => {}) };
  const incarnation = { guest, machine } as unknown as Incarnation;
  // As whoever makes it running does.
  onEnd(incarnation.machine, () => {});
  sandbox.incarnation = incarnation;
  entries.add(sandbox);
  return { entry: sandbox, incarnation };
}

const ID = "i0123456789abcdefghi";
const logsOf = async (id = ID) =>
  (await telemetry.logs(id, { limit: 100, direction: "forward" })).map(({ message }) => message).join(" ");

test("a running sandbox is read within seconds, by pages; the agent is told what is stored", async () => {
  const asked: Question[] = [];
  running(ID, async (question) => {
    asked.push(question);
    const reading = question.metrics ? { reading: READING } : {};
    if (question.afterUs === 0) return { ...reading, entries: [entry(1), entry(2)], more: true };
    return { ...reading, entries: question.afterUs === 2 ? [entry(3)] : [], more: false };
  });
  collector.start();
  await until("the first reading", () => asked.length === 2);
  await collector.close();
  assert.equal(await logsOf(), "m1 m2 m3");
  assert.deepEqual(
    asked.map(({ afterUs, metrics }) => [afterUs, metrics]),
    [
      [0, true],
      [2, false],
    ],
  );
  const [metric, ...rest] = await telemetry.metrics(ID, {});
  assert.deepEqual(rest, []);
  assert.ok(metric !== undefined && Math.abs(metric.atMs - Date.now()) < 30_000);
  assert.deepEqual({ ...metric, atMs: 0 }, { atMs: 0, ...READING });
});

test("whoever asks for logs gets what was there when he asked; many ask once", async () => {
  let questions = 0;
  let written = 0;
  const { entry: sandbox } = running(ID, async () => {
    questions += 1;
    const upTo = written;
    await new Promise((resolve) => setTimeout(resolve, 20));
    return { entries: upTo === 0 ? [] : [entry(upTo)], more: false };
  });
  const early = collector.refresh(sandbox);
  written = 1;
  await Promise.all([early, ...Array.from({ length: 20 }, () => collector.refresh(sandbox))]);
  assert.equal(await logsOf(), "m1");
  assert.ok(questions <= 2, `${questions} questions`);
  for (written = 2; written <= 5; written += 1) {
    await collector.refresh(sandbox);
    assert.match(await logsOf(), new RegExp(` m${written}$`));
  }
  questions = 0;
  // One that rests, or is on its way, is not asked.
  for (const state of ["paused", "pausing", "forking", "killing"] as const) {
    sandbox.update({ state });
    await collector.refresh(sandbox);
  }
  assert.equal(questions, 0);
});

test("agents that do not answer hold up nobody, and are asked ever more seldom", async () => {
  let hanging = 0;
  for (let n = 0; n < 40; n += 1) {
    running(`ihanging${String(n).padStart(12, "0")}`, async () => {
      hanging += 1;
      await new Promise((resolve) => setTimeout(resolve, 100));
      throw new Error("no answer in time");
    });
  }
  const { entry: sandbox, incarnation } = running(ID, async () => ({
    reading: READING,
    entries: [entry(9)],
    more: false,
  }));
  collector.start();
  await until("all have been asked", () => hanging >= 40);
  await collector.close();
  assert.equal(hanging, 40);
  assert.equal(logged.length, 40);
  assert.match(logged[0] ?? "", /"warn".*cannot be read.*no answer in time/);
  const startedAtMs = performance.now();
  await collector.refresh(sandbox);
  await collector.drain(sandbox, incarnation);
  assert.ok(performance.now() - startedAtMs < 500);
  assert.equal(await logsOf(), "m9");
});

test("the end of a sandbox waits for its last words, but not long, and not for a machine that is gone", async () => {
  const talking = running(ID, async () => ({ entries: [entry(1)], more: false }));
  talking.entry.update({ state: "killing" });
  await collector.drain(talking.entry, talking.incarnation);
  assert.equal(await logsOf(), "m1");
  const silent = Promise.withResolvers<TelemetryAnswer>();
  const hanging = running("ihanging000000000000", () => silent.promise);
  const startedAtMs = performance.now();
  await collector.drain(hanging.entry, hanging.incarnation);
  const tookMs = performance.now() - startedAtMs;
  assert.ok(tookMs > 200 && tookMs < 1_000, `${tookMs} ms`);
  silent.resolve({ entries: [], more: false });
  let asked = 0;
  const answers = async () => {
    asked += 1;
    return { entries: [], more: false };
  };
  const gone = running("igone000000000000000", answers, { isOver: true });
  await collector.refresh(gone.entry);
  await collector.drain(gone.entry, gone.incarnation);
  assert.equal(asked, 1, "asked although its end had been noticed");
  assert.deepEqual(logged, []);
});

test("one that comes to rest again is asked for its logs only when it has said that there are some", async () => {
  const said: LogEntry[] = [];
  let asked = 0;
  const { entry: sandbox, incarnation } = running(ID, async ({ afterUs }) => {
    asked += 1;
    return { entries: said.filter(({ idUs }) => idUs > afterUs), more: false };
  });
  const awaited: { readonly afterUs: number; readonly told: PromiseWithResolvers<boolean> }[] = [];
  Object.assign(incarnation.guest, {
    awaitEntry: (_key: string, { afterUs, signal }: Parameters<Guest["awaitEntry"]>[1]) => {
      const told = Promise.withResolvers<boolean>();
      if (signal.aborted) told.reject(signal.reason);
      signal.addEventListener("abort", () => told.reject(signal.reason));
      awaited.push({ afterUs, told });
      return told.promise;
    },
  });
  said.push(entry(1));
  for (let rest = 0; rest < 3; rest += 1) {
    await collector.drainToRest(sandbox, incarnation);
    await collector.drainNews(sandbox, incarnation);
  }
  await until("it to be listened to", () => awaited.length === 1);
  assert.deepEqual([asked, awaited[0]?.afterUs, await logsOf()], [1, 1, "m1"]);
  said.push(entry(2));
  awaited[0]?.told.resolve(true);
  await new Promise(setImmediate);
  await collector.drainNews(sandbox, incarnation);
  await until("it to be listened to again", () => awaited.length === 2);
  assert.deepEqual([asked, awaited[1]?.afterUs, await logsOf()], [2, 2, "m1 m2"]);
  // It cannot be heard any more.
  awaited[1]?.told.reject(new Error("the connection broke"));
  await new Promise(setImmediate);
  await collector.drainToRest(sandbox, incarnation);
  assert.equal(asked, 3);
  // Its build cannot say so: it is asked once before each rest.
  awaited[2]?.told.resolve(false);
  await new Promise(setImmediate);
  for (let rest = 0; rest < 3; rest += 1) {
    await collector.drainToRest(sandbox, incarnation);
    await collector.drainNews(sandbox, incarnation);
  }
  assert.deepEqual([asked, awaited.length], [6, 3]);
  await collector.close();
  assert.deepEqual(logged, []);
});

test("an agent of an older build is asked once; one that says nonsense for ever is cut off", async () => {
  let old = 0;
  running(ID, async () => {
    old += 1;
    return undefined;
  });
  let endless = 0;
  running("iendless000000000000", async () => {
    endless += 1;
    return { reading: READING, entries: [entry(endless)], more: true };
  });
  let ahead = 0;
  running("iahead00000000000000", async ({ afterUs }) => {
    ahead += 1;
    assert.equal(afterUs, 0, "what is not stored was said to be");
    return { reading: READING, entries: [entry(Number.MAX_SAFE_INTEGER)], more: true };
  });
  collector.start();
  await until("all", () => old === 1 && endless >= 8 && ahead >= 1);
  await collector.close();
  assert.deepEqual([old, endless, ahead], [1, 8, 1]);
  assert.equal((await telemetry.metrics("iahead00000000000000", {})).length, 1);
  assert.deepEqual(logged, []);
});

/** A clock that stands still unless it is moved; rounds go on. */
function standingClock(t: TestContext): { move(ms: number): void } {
  let nowMs = performance.now();
  t.mock.method(performance, "now", () => nowMs);
  return {
    move: (ms) => {
      nowMs += ms;
    },
  };
}

/** A sandbox that answers at once. `passed` settles when all has begun that is due at a clock moved on. */
function witness(clock: { move(ms: number): void }): { passed(ms: number): Promise<void> } {
  let read = 0;
  const { entry: sandbox } = running("iwitness000000000000", async ({ metrics }) => {
    read += metrics ? 1 : 0;
    return { reading: READING, entries: [], more: false };
  });
  return {
    passed: async (ms) => {
      const before = read;
      clock.move(ms);
      await until("the witness is read", () => read > before);
      // Its reading is over before the clock moves on.
      await collector.refresh(sandbox);
    },
  };
}

test("readings that somebody asked for keep no place from other sandboxes, however long they take", async (t) => {
  const clock = standingClock(t);
  const silent = Promise.withResolvers<undefined>();
  for (let n = 0; n < 40; n += 1) {
    const { entry: sandbox } = running(`isilent${String(n).padStart(13, "0")}`, () => silent.promise);
    void collector.refresh(sandbox);
  }
  let read = 0;
  running(ID, async () => {
    read += 1;
    return { reading: READING, entries: [], more: false };
  });
  collector.start();
  clock.move(5_000);
  try {
    await until("the one that answers is read", () => read > 0);
  } finally {
    silent.resolve(undefined);
  }
});

test("readings of a slow sandbox do not queue up", async (t) => {
  const clock = standingClock(t);
  const silent = Promise.withResolvers<TelemetryAnswer>();
  let asked = 0;
  running(ID, () => {
    asked += 1;
    return silent.promise;
  });
  const { passed } = witness(clock);
  collector.start();
  try {
    for (let n = 0; n < 4; n += 1) await passed(5_000);
  } finally {
    silent.resolve({ reading: READING, entries: [], more: false });
  }
  await passed(5_000);
  assert.equal(asked, 1);
});

test("all pages of a reading have one deadline, and a sandbox rests ten times as long as it took", async (t) => {
  const clock = standingClock(t);
  const readings: { metrics: boolean; timeoutsMs: number[] }[] = [];
  let id = 0;
  const { entry: sandbox } = running(ID, async ({ metrics, timeoutMs }) => {
    if (Math.round(timeoutMs) === 2_000) readings.push({ metrics, timeoutsMs: [] });
    readings.at(-1)?.timeoutsMs.push(Math.round(timeoutMs));
    clock.move(300);
    id += 1;
    return { reading: READING, entries: [entry(id)], more: true };
  });
  await collector.refresh(sandbox);
  for (const ms of [1_000, 18_700, 300]) {
    clock.move(ms);
    await collector.refresh(sandbox);
  }
  const timeoutsMs = [2000, 1700, 1400, 1100, 800, 500, 200];
  assert.deepEqual(
    readings,
    [false, true, false, true].map((metrics) => ({ metrics, timeoutsMs })),
  );
});

test("whoever asks when metrics are due takes them along; a sandbox that is asked all the time has them", async (t) => {
  const clock = standingClock(t);
  const asked: boolean[] = [];
  const { entry: sandbox } = running(ID, async ({ metrics }) => {
    asked.push(metrics);
    return { ...(metrics && { reading: READING }), entries: [], more: false };
  });
  for (const ms of [0, 1_000, 1_000, 4_000, 1_000]) {
    clock.move(ms);
    await collector.refresh(sandbox);
  }
  assert.deepEqual(asked, [false, true, false, true, false]);
  assert.equal((await telemetry.metrics(ID, {})).length, 2);
});

test("one that goes on after a rest has its metrics read no sooner than anybody", async (t) => {
  const clock = standingClock(t);
  const asked: boolean[] = [];
  const { entry: sandbox, incarnation } = running(ID, async ({ metrics }) => {
    asked.push(metrics);
    return { ...(metrics && { reading: READING }), entries: [], more: false };
  });
  await collector.refresh(sandbox);
  clock.move(60_000);
  collector.putOff(incarnation);
  for (const ms of [0, 4_000, 1_000]) {
    clock.move(ms);
    await collector.refresh(sandbox);
  }
  assert.deepEqual(asked, [false, false, false, true]);
});
