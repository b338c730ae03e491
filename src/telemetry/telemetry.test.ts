import assert from "node:assert/strict";
import { appendFile, mkdir, mkdtemp, readdir, readFile, rm, stat, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, test } from "node:test";
import type { EntryLevel, LogEntry, LogQuery, Metric } from "#domain";
import { Telemetry } from "./telemetry.ts";

const ID = "i0123456789abcdefghi";
const OTHER = "iabcdefghijklmnopqrs";
const DAY_MS = 24 * 3_600_000;

let dir: string;
let nowMs: number;
let telemetry: Telemetry;

beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "aenv-telemetry-"));
  nowMs = Date.parse("2030-01-02T03:04:05.000Z");
  telemetry = await reopened();
});
afterEach(() => rm(dir, { recursive: true, force: true }));

/** As a server that was killed finds it. */
function reopened(): Promise<Telemetry> {
  return Telemetry.open(dir, () => nowMs);
}

function metric(atMs: number, cpuUsedPct = 1): Metric {
  const mem = { memUsedBytes: 100, memTotalBytes: 1000, memCacheBytes: 10 };
  return { atMs, cpuCount: 2, cpuUsedPct, ...mem, diskUsedBytes: 5, diskTotalBytes: 50 };
}

function entry(idUs: number, message = `m${idUs}`, level: EntryLevel = "info"): LogEntry {
  return { idUs, level, logger: "process", message, fields: { pid: "7" } };
}

async function messages(query: Partial<LogQuery> = {}, id = ID): Promise<string> {
  const found = await telemetry.logs(id, { limit: 1000, direction: "forward", ...query });
  return found.map(({ message }) => message).join(" ");
}

/** The newest file of a kind. */
async function newest(kind: string, id = ID): Promise<string> {
  const names = (await readdir(join(dir, "live", id))).filter((name) => name.startsWith(kind)).sort();
  return join(dir, "live", id, names.at(-1) ?? "none");
}

test("what was recorded is found by time, level and text, both ways, also by the next server", async () => {
  await telemetry.record(ID, metric(5_000), [entry(1_000_000), entry(1_000_999, "warned Text", "warn")]);
  await telemetry.record(ID, metric(10_000, 7), [
    entry(2_000_000, "debugged", "debug"),
    entry(3_000_000, "x", "error"),
  ]);
  telemetry = await reopened();
  assert.deepEqual(await telemetry.metrics(ID, {}), [metric(5_000), metric(10_000, 7)]);
  assert.deepEqual(await telemetry.metrics(ID, { startMs: 5_001, endMs: 10_000 }), [metric(10_000, 7)]);
  assert.deepEqual(await telemetry.metrics(ID, { startMs: 10_001 }), []);
  assert.deepEqual(await telemetry.latest(ID), metric(10_000, 7));
  assert.equal(await telemetry.lastEntryUs(ID), 3_000_000);

  assert.equal(await messages(), "m1000000 warned Text debugged x");
  assert.equal(await messages({ direction: "backward", limit: 2 }), "x debugged");
  assert.equal(await messages({ startMs: 1_000, endMs: 1_000 }), "m1000000 warned Text");
  assert.equal(await messages({ startMs: 1_001 }), "debugged x");
  assert.equal(await messages({ endMs: 1_999, direction: "backward" }), "warned Text m1000000");
  assert.equal(await messages({ minLevel: "warn" }), "warned Text x");
  assert.equal(await messages({ minLevel: "info" }), "m1000000 warned Text x");
  assert.equal(await messages({ search: "Text" }), "warned Text");
  assert.equal(await messages({ search: "text" }), "");
  assert.equal(await messages({ limit: 0 }), "");
  assert.deepEqual((await telemetry.logs(ID, { limit: 1, direction: "forward" }))[0], entry(1_000_000));
});

test("entries that come twice are stored once, and a clock that is set back loses no reading", async () => {
  await telemetry.record(ID, metric(5_000), [entry(10), entry(20)]);
  telemetry = await reopened();
  await telemetry.record(ID, metric(4_000), [entry(10), entry(20), entry(30)]);
  assert.equal(await messages(), "m10 m20 m30");
  assert.deepEqual(
    (await telemetry.metrics(ID, {})).map(({ atMs }) => atMs),
    [5_000, 5_001],
  );
});

test("entries of a clock far ahead wait for their time; later ones of a right clock are not taken for known", async () => {
  const nowUs = nowMs * 1000;
  const hourUs = 3_600_000_000;
  await telemetry.record(ID, metric(1), [
    entry(nowUs + hourUs, "ahead"),
    entry(nowUs + hourUs + 1, "too_far"),
    entry(Number.MAX_SAFE_INTEGER, "never"),
  ]);
  assert.equal(await telemetry.lastEntryUs(ID), nowUs + hourUs);
  nowMs += 1;
  await telemetry.record(ID, undefined, [entry(nowUs + hourUs + 1, "come")]);
  assert.equal(await messages(), "ahead come");
  assert.equal((await telemetry.metrics(ID, {})).length, 1);
});

test("a ring keeps the newest and stays below its bound; nothing of a page is lost at the joints", async () => {
  const pageOf = (from: number) =>
    Array.from({ length: 100 }, (_, at) => entry(from + at, `${from + at} ${"x".repeat(1_000)}`));
  for (let page = 1; page <= 60; page += 1) await telemetry.record(ID, undefined, pageOf(page * 100));
  const files = await readdir(join(dir, "live", ID));
  const sizes = await Promise.all(files.map(async (name) => (await stat(join(dir, "live", ID, name))).size));
  assert.equal(files.length, 4);
  assert.ok(Math.max(...sizes) < 640 * 1024, `${sizes}`);
  const found = await telemetry.logs(ID, { limit: 10_000, direction: "forward" });
  const ids = found.map(({ idUs }) => idUs);
  assert.equal(ids.at(-1), 6_099);
  assert.ok(ids.length >= 1_500, `${ids.length} entries`);
  assert.deepEqual(
    ids,
    Array.from({ length: ids.length }, (_, at) => 6_100 - ids.length + at),
  );
  const backward = await telemetry.logs(ID, { limit: 700, direction: "backward" });
  assert.deepEqual(
    backward.map(({ idUs }) => idUs),
    ids.toReversed().slice(0, 700),
  );
});

test("what a crash leaves is read as far as it is whole, and written on behind that", async () => {
  await telemetry.record(ID, metric(5_000), [entry(10), entry(20), entry(30)]);
  const path = await newest("logs");
  await truncate(path, (await stat(path)).size - 3);
  telemetry = await reopened();
  assert.equal(await messages(), "m10 m20");
  assert.equal(await telemetry.lastEntryUs(ID), 20);
  await telemetry.record(ID, undefined, [entry(25)]);
  assert.equal(await messages(), "m10 m20 m25");
  assert.match(await readFile(path, "utf8"), /"m20".*\n\[25,.*\n$/);

  // A host's crash may leave zeros, or lines of nobody.
  await appendFile(path, `\0\0\0\n[27,"info"]\n[28,"loud","x","y",{}]\nnot json\n${await newest("metrics")}`);
  telemetry = await reopened();
  assert.equal(await messages(), "m10 m20 m25");
  await telemetry.record(ID, undefined, [entry(40)]);
  assert.equal(await messages(), "m10 m20 m25 m40");

  // All of a file is gone.
  await truncate(path, 0);
  telemetry = await reopened();
  await telemetry.record(ID, undefined, [entry(10), entry(50)]);
  assert.equal(await messages(), "m10 m50");
});

test("an ended sandbox can be read for a week, and takes nothing more", async () => {
  await telemetry.record(ID, metric(5_000), [entry(10)]);
  await telemetry.record(OTHER, metric(5_000), [entry(20)]);
  await telemetry.end(ID);
  await telemetry.end(ID);
  await telemetry.record(ID, metric(6_000), [entry(11)]);
  assert.deepEqual([telemetry.hasEnded(ID), telemetry.hasEnded(OTHER)], [true, false]);
  assert.equal(await messages(), "m10");
  assert.deepEqual(await telemetry.latest(ID), metric(5_000));
  assert.deepEqual(await readdir(join(dir, "live")), [OTHER]);
  telemetry = await reopened();
  assert.equal(telemetry.hasEnded(ID), true);
  assert.equal(await messages(), "m10");
  nowMs += 7 * DAY_MS + 1;
  await telemetry.sweep();
  assert.equal(telemetry.hasEnded(ID), false);
  assert.deepEqual(await readdir(join(dir, "ended")), []);
  assert.equal(await messages({}, OTHER), "m20");
});

test("ended ones go, the oldest first, when they are too much together", async () => {
  const name = (at: number) => `i${String(at).padStart(19, "0")}`;
  // Their files are as large as they like; what counts is what their names say.
  for (let at = 1; at <= 3; at += 1) {
    await mkdir(join(dir, "ended", `${nowMs - at * 1000}-${250 * 1024 * 1024}-${name(at)}`));
  }
  telemetry = await reopened();
  await telemetry.record(ID, metric(5_000), [entry(10)]);
  await telemetry.end(ID);
  await telemetry.sweep();
  assert.deepEqual(
    [1, 2, 3].map((at) => telemetry.hasEnded(name(at))),
    [true, true, false],
  );
  assert.equal((await readdir(join(dir, "ended"))).length, 3);
});

test("a late answer of a sandbox that ended before any begins nothing for it", async () => {
  await telemetry.end(ID);
  await telemetry.record(ID, metric(nowMs), [entry(1)]);
  assert.deepEqual(await readdir(join(dir, "live")), []);
  assert.equal(await messages(), "");
});

test("what a crash has kept from being ended is ended by the next server; a sandbox without files leaves none", async () => {
  await telemetry.record(ID, undefined, [entry(10)]);
  await telemetry.record(OTHER, undefined, [entry(20)]);
  telemetry = await reopened();
  await telemetry.retain(new Set([OTHER]));
  assert.deepEqual([telemetry.hasEnded(ID), telemetry.hasEnded(OTHER)], [true, false]);
  await telemetry.end("i00000000000000000zz");
  assert.deepEqual(await readdir(join(dir, "live")), [OTHER]);
  assert.deepEqual(await telemetry.metrics("i00000000000000000zz", {}), []);
});

test("calls at once for one sandbox keep its lines whole and in order", async () => {
  const writes = Array.from({ length: 50 }, (_, at) => telemetry.record(ID, metric(at + 1), [entry(at + 1)]));
  const reads = Array.from({ length: 10 }, () => messages());
  await Promise.all([...writes, ...reads, telemetry.end(ID), telemetry.end(ID)]);
  assert.equal((await messages()).split(" ").length, 50);
});

test("a write that fails is an error, and costs nothing that comes later", async () => {
  await telemetry.record(ID, undefined, [entry(10)]);
  await writeFile(join(dir, "live", OTHER), "in the way");
  await assert.rejects(telemetry.record(OTHER, undefined, [entry(20)]));
  await rm(join(dir, "live", OTHER));
  await telemetry.record(OTHER, undefined, [entry(20)]);
  assert.equal(await messages({}, OTHER), "m20");
  assert.equal(await messages(), "m10");
});
