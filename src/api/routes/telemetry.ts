import { createRoute, z } from "@hono/zod-openapi";
import type { Api, ApiDeps } from "../deps.ts";
import {
  BatchMetricsQuery,
  cutPage,
  LogsQuery,
  LogsQueryV2,
  MetricsQuery,
  SandboxesWithMetrics,
  SandboxLogs,
  SandboxLogsV2,
  SandboxMetric,
  toIds,
  toLogEntry,
  toLogs,
  toMetricQuery,
  toSandboxMetric,
} from "../wire/telemetry.ts";
import { errors, json, SandboxParam } from "./common.ts";

const shared = { method: "get" as const, tags: ["sandboxes"] };

const batchMetrics = createRoute({
  ...shared,
  path: "/sandboxes/metrics",
  summary: "The newest reading of each of several running sandboxes",
  request: { query: BatchMetricsQuery },
  responses: { 200: json(SandboxesWithMetrics, "Those that run and have one."), ...errors(400) },
});

const metrics = createRoute({
  ...shared,
  path: "/sandboxes/{sandboxID}/metrics",
  summary: "What a sandbox uses and used, every five seconds; thinned beyond an hour; kept a while after its end",
  request: { params: SandboxParam, query: MetricsQuery },
  responses: { 200: json(z.array(SandboxMetric), "Oldest first."), ...errors(400, 404) },
});

const logs = createRoute({
  ...shared,
  path: "/sandboxes/{sandboxID}/logs",
  summary: "What happened in a sandbox, oldest first; kept a while after its end",
  request: { params: SandboxParam, query: LogsQuery },
  responses: { 200: json(SandboxLogs, "The same entries in both shapes."), ...errors(400, 404) },
});

const logsV2 = createRoute({
  ...shared,
  path: "/v2/sandboxes/{sandboxID}/logs",
  summary: "What happened in a sandbox, by direction, level and text; kept a while after its end",
  request: { params: SandboxParam, query: LogsQueryV2 },
  responses: { 200: json(SandboxLogsV2, "A page."), ...errors(400, 404) },
});

/** What sandboxes use and what happens in them. */
export function telemetryRoutes(app: Api, { cluster }: ApiDeps): void {
  app.openapi(batchMetrics, async (c) => {
    const found = await cluster.latestMetrics(toIds(c.req.valid("query")));
    const sandboxes = Object.fromEntries([...found].map(([id, metric]) => [id, toSandboxMetric(metric)]));
    return c.json({ sandboxes }, 200);
  });

  app.openapi(metrics, async (c) => {
    const found = await cluster.metrics(c.req.valid("param").sandboxID, toMetricQuery(c.req.valid("query")));
    return c.json(found.map(toSandboxMetric), 200);
  });

  app.openapi(logs, async (c) => {
    const { start, limit } = c.req.valid("query");
    const query = { ...(start !== undefined && { startMs: start }), limit: limit + 1, direction: "forward" as const };
    const entries = await cluster.logs(c.req.valid("param").sandboxID, query);
    return c.json(toLogs(cutPage(entries, limit)), 200);
  });

  app.openapi(logsV2, async (c) => {
    const { cursor, limit, direction, level, search } = c.req.valid("query");
    const entries = await cluster.logs(c.req.valid("param").sandboxID, {
      limit,
      direction,
      ...(cursor !== undefined && (direction === "forward" ? { startMs: cursor } : { endMs: cursor })),
      ...(level !== undefined && { minLevel: level }),
      ...(search !== undefined && { search }),
    });
    return c.json({ logs: entries.map(toLogEntry) }, 200);
  });
}
