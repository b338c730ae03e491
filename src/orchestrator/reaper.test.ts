import assert from "node:assert/strict";
import { afterEach, beforeEach, describe, mock, test } from "node:test";
import type { Sandbox, SandboxState } from "#domain";
import { silentLogger } from "#lib/log";
import { Entries } from "./entries.ts";
import { Entry } from "./entry.ts";
import { Reaper } from "./reaper.ts";
import type { SandboxRecord } from "./record.ts";

const RETENTION_MS = 60_000;
const TICK_MS = 250;

let entries: Entries;
let reaper: Reaper;
let ended: Entry[];
/** Ends the ends that were begun. */
let endings: PromiseWithResolvers<void>[];
let count = 0;

beforeEach(() => {
  mock.timers.enable({ apis: ["setInterval", "Date"], now: 0 });
  [entries, ended, endings] = [new Entries(), [], []];
  reaper = new Reaper({
    entries,
    logger: silentLogger,
    pausedRetentionMs: RETENTION_MS,
    expire: (entry) => {
      ended.push(entry);
      const ending = Promise.withResolvers<void>();
      endings.push(ending);
      return entries.end(entry, async () => {
        await ending.promise;
        entries.remove(entry);
      });
    },
  });
});
afterEach(async () => {
  for (const { resolve } of endings) resolve();
  await reaper.close();
  mock.timers.reset();
});

function add(state: SandboxState, endAtMs: number): Entry {
  const sandbox = { id: `i${count++}`, state, endAtMs, spec: { onTimeout: "kill" } } as unknown as Sandbox;
  const entry = new Entry({ sandbox } as SandboxRecord);
  entries.add(entry);
  return entry;
}

/** Lets time pass, in which the reaper looks. */
function pass(ms: number): void {
  mock.timers.tick(ms);
}

/** Lets what has been begun come to its end. */
async function settle(): Promise<void> {
  await new Promise((resolve) => setImmediate(resolve));
}

describe("the reaper", () => {
  test("removes a paused sandbox when it has been kept long enough, and not before", () => {
    const paused = add("paused", 0);
    pass(RETENTION_MS - 1);
    assert.deepEqual(ended, []);
    pass(TICK_MS);
    assert.deepEqual(ended, [paused]);
  });

  test("never removes one that runs for the time it was paused", () => {
    for (const state of ["running", "frozen"] as const) add(state, 100 * RETENTION_MS);
    pass(10 * RETENTION_MS);
    assert.deepEqual(ended, []);
  });

  test("leaves one that is being resumed to who resumes it, whatever the time", async () => {
    const resumed = add("paused", 0);
    const resuming = Promise.withResolvers<void>();
    const resume = entries.begin(resumed, async () => {
      resumed.update({ state: "resuming" });
      await resuming.promise;
      resumed.update({ state: "running", endAtMs: 100 * RETENTION_MS });
    });
    pass(2 * RETENTION_MS);
    resuming.resolve();
    await resume;
    await settle();
    pass(2 * RETENTION_MS);
    assert.deepEqual(ended, []);
  });

  test("removes paused ones a few at a time, while timeouts wait for nobody", async () => {
    for (let at = 0; at < 40; at += 1) add("paused", 0);
    pass(RETENTION_MS + TICK_MS);
    const atOnce = ended.length;
    assert.ok(atOnce > 0 && atOnce < 20, `${atOnce} at once`);
    for (let at = 0; at < 40; at += 1) add("running", 0);
    pass(TICK_MS);
    assert.equal(ended.length, atOnce + 40);
    endings[0]?.resolve();
    await settle();
    pass(TICK_MS);
    assert.equal(ended.length, atOnce + 41);
    while (entries.all().length > 0) {
      for (const { resolve } of endings) resolve();
      await settle();
      pass(TICK_MS);
    }
    assert.equal(new Set(ended).size, 80);
  });

  test("tries again what could not be removed, and not at once", async () => {
    const paused = add("paused", 0);
    pass(RETENTION_MS + TICK_MS);
    endings[0]?.reject(new Error("no space"));
    await settle();
    pass(TICK_MS);
    assert.equal(ended.length, 1);
    pass(30_000);
    assert.deepEqual(ended, [paused, paused]);
  });
});
