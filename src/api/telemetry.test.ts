import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import type { LogEntry, Metric } from "#domain";
import { TestApi } from "./testing.ts";

const AT_MS = Date.parse("2030-01-02T03:04:05.678Z");
const METRIC: Metric = {
  atMs: AT_MS,
  cpuCount: 2,
  cpuUsedPct: 50.51,
  memUsedBytes: 123,
  memTotalBytes: 1_000,
  memCacheBytes: 45,
  diskUsedBytes: 67,
  diskTotalBytes: 2_000,
};
const WIRE_METRIC = {
  timestamp: "2030-01-02T03:04:05.678Z",
  timestampUnix: 1893553445,
  cpuCount: 2,
  cpuUsedPct: 50.51,
  memUsed: 123,
  memTotal: 1_000,
  memCache: 45,
  diskUsed: 67,
  diskTotal: 2_000,
};

let api: TestApi;
let id: string;
beforeEach(async () => {
  api = new TestApi();
  await api.publish("base");
  id = await api.create();
});

function entry(idUs: number, message = "hello"): LogEntry {
  return { idUs, level: "warn", logger: "process", message, fields: { event_type: "stdout", pid: "7" } };
}

test("metrics of one sandbox: E2B's shape, a range in seconds, an empty list", async () => {
  assert.deepEqual((await api.call("GET", `/sandboxes/${id}/metrics`)).body, []);
  api.node.keptMetrics.set(id, [METRIC]);
  const { status, body } = await api.call("GET", `/sandboxes/${id}-00000000/metrics?start=1893553440&end=1893553445`);
  assert.equal(status, 200);
  assert.deepEqual(body, [WIRE_METRIC]);
  await api.call("GET", `/sandboxes/${id}/metrics?start=7`);
  assert.deepEqual(api.node.queries, [{}, { startMs: 1893553440000, endMs: 1893553445999 }, { startMs: 7000 }]);
});

test("metrics of several: those that run and have some, by id, in any spelling of a list", async () => {
  const other = await api.create();
  api.node.keptMetrics.set(id, [{ ...METRIC, cpuUsedPct: 1 }, METRIC]);
  api.node.keptMetrics.set(other, [METRIC]);
  for (const query of [`${id},${other},inosuchsandbox000000`, `${id}-0&sandbox_ids=${other}`, `${id}%2C${other}`]) {
    const { status, body } = await api.call("GET", `/sandboxes/metrics?sandbox_ids=${query}`);
    assert.equal(status, 200);
    assert.deepEqual(body, { sandboxes: { [id]: WIRE_METRIC, [other]: WIRE_METRIC } }, query);
  }
  assert.deepEqual((await api.call("GET", "/sandboxes/metrics?sandbox_ids=")).body, { sandboxes: {} });
  const many = Array.from({ length: 101 }, () => id).join(",");
  const tooMany = await api.call("GET", `/sandboxes/metrics?sandbox_ids=${many}`);
  assert.equal(tooMany.status, 400);
  assert.match(tooMany.body.message, /Too many sandboxes requested, maximum is 100/);
});

test("logs, first version: both shapes; a line is JSON with level and logger", async () => {
  api.node.keptLogs.set(id, [entry(AT_MS * 1000 + 9)]);
  const { status, body } = await api.call("GET", `/sandboxes/${id}/logs?start=${AT_MS}&limit=5`);
  assert.equal(status, 200);
  const timestamp = "2030-01-02T03:04:05.678009Z";
  assert.deepEqual(body.logEntries, [
    { timestamp, level: "warn", message: "hello", fields: { logger: "process", event_type: "stdout", pid: "7" } },
  ]);
  assert.equal(body.logs.length, 1);
  assert.equal(body.logs[0].timestamp, timestamp);
  assert.deepEqual(JSON.parse(body.logs[0].line), {
    event_type: "stdout",
    pid: "7",
    level: "warn",
    logger: "process",
    message: "hello",
  });
  assert.deepEqual(api.node.queries, [{ startMs: AT_MS, limit: 6, direction: "forward" }]);
});

test("logs, first version: a page that is cut ends with a whole millisecond, where it has one", async () => {
  const shown = async (limit: number) =>
    (await api.call("GET", `/sandboxes/${id}/logs?limit=${limit}`)).body.logEntries.map(
      ({ message }: { message: string }) => message,
    );
  api.node.keptLogs.set(id, [entry(1_000, "a"), entry(2_000, "b"), entry(2_001, "c"), entry(2_002, "d")]);
  assert.deepEqual(await shown(4), ["a", "b", "c", "d"]);
  assert.deepEqual(await shown(3), ["a"]);
  assert.deepEqual(await shown(2), ["a"]);
  assert.deepEqual(await shown(1), ["a"]);
  assert.deepEqual(await shown(0), []);
  api.node.keptLogs.set(id, [entry(2_000, "b"), entry(2_001, "c"), entry(2_002, "d")]);
  assert.deepEqual(await shown(2), ["b", "c"]);
  await api.call("GET", `/sandboxes/${id}/logs`);
  assert.deepEqual(api.node.queries.at(-1), { limit: 1001, direction: "forward" });
});

test("logs, second version: newest first unless asked, from a cursor, by level and text", async () => {
  api.node.keptLogs.set(id, [entry(AT_MS * 1000)]);
  const { status, body } = await api.call("GET", `/v2/sandboxes/${id}/logs`);
  assert.equal(status, 200);
  assert.deepEqual(body, {
    logs: [
      {
        timestamp: "2030-01-02T03:04:05.678000Z",
        level: "warn",
        message: "hello",
        fields: { logger: "process", event_type: "stdout", pid: "7" },
      },
    ],
  });
  await api.call("GET", `/v2/sandboxes/${id}/logs?cursor=5&limit=7&direction=forward&level=warn&search=a%20B`);
  await api.call("GET", `/v2/sandboxes/${id}/logs?cursor=5`);
  assert.deepEqual(api.node.queries, [
    { limit: 1000, direction: "backward" },
    { limit: 7, direction: "forward", startMs: 5, minLevel: "warn", search: "a B" },
    { limit: 1000, direction: "backward", endMs: 5 },
  ]);
});

test("an ended sandbox can be read as long as something is kept of it; an unknown one is not found", async () => {
  api.node.keptMetrics.set(id, [METRIC]);
  api.node.keptLogs.set(id, [entry(7)]);
  await api.call("DELETE", `/sandboxes/${id}`);
  assert.equal((await api.call("GET", `/sandboxes/${id}/metrics`)).body.length, 1);
  assert.equal((await api.call("GET", `/sandboxes/${id}/logs`)).body.logs.length, 1);
  assert.equal((await api.call("GET", `/v2/sandboxes/${id}/logs`)).body.logs.length, 1);
  assert.deepEqual((await api.call("GET", `/sandboxes/metrics?sandbox_ids=${id}`)).body, { sandboxes: {} });
  for (const path of ["/sandboxes/NO/metrics", "/sandboxes/NO/logs", "/v2/sandboxes/NO/logs"]) {
    const { status, body } = await api.call("GET", path.replace("NO", "inosuchsandbox000000"));
    assert.equal(status, 404);
    assert.equal(body.code, 404);
    assert.match(body.message, /doesn't exist or you don't have access to it$/);
  }
});

test("wrong queries are answered by field, and nothing without a key", async () => {
  for (const [path, field] of [
    [`/sandboxes/${id}/metrics?start=x`, "start"],
    [`/sandboxes/${id}/metrics?end=-1`, "end"],
    [`/sandboxes/${id}/metrics?start=1.5`, "start"],
    [`/sandboxes/${id}/metrics?start=2&end=1`, "start"],
    ["/sandboxes/metrics", "sandbox_ids"],
    [`/sandboxes/${id}/logs?start=-1`, "start"],
    [`/sandboxes/${id}/logs?limit=2147483648`, "limit"],
    [`/v2/sandboxes/${id}/logs?cursor=soon`, "cursor"],
    [`/v2/sandboxes/${id}/logs?limit=1001`, "limit"],
    [`/v2/sandboxes/${id}/logs?direction=up`, "direction"],
    [`/v2/sandboxes/${id}/logs?level=loud`, "level"],
    [`/v2/sandboxes/${id}/logs?search=${"x".repeat(257)}`, "search"],
  ] as const) {
    const { status, body } = await api.call("GET", path);
    assert.equal(status, 400, path);
    assert.match(body.message, new RegExp(field), path);
    assert.equal((await api.call("GET", path, undefined, { "X-API-Key": "" })).status, 401, path);
  }
});
