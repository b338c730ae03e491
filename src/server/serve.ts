import { chmodSync, mkdirSync, rmSync } from "node:fs";
import { createServer, type Server } from "node:http";
import { flushCompileCache } from "node:module";
import { cpus, freemem, totalmem } from "node:os";
import { getRequestListener } from "@hono/node-server";
import { createApi, createApiKeys } from "#api";
import { ImageBuilder } from "#builder";
import { CATALOG_FORMAT, SqliteCatalog, Templates } from "#catalog";
import { SingleNodeCluster } from "#cluster";
import { createLogger, type Logger, writeStderr } from "#lib/log";
import { RouteFeed } from "#proxy";
import { type Config, dataPaths, loadConfig } from "../config.ts";
import { loadOrMakeApiKey } from "./api-key.ts";
import { armOrderedFaults } from "./faults.ts";
import { metricsText } from "./metrics.ts";
import { startNode } from "./node.ts";

const VERSION = "0.1.0";
/** How long requests under way may take to end when the server is told to stop. */
const STOP_GRACE_MS = 8_000;

/** The edge keeps its connections, also such as have carried nothing yet; one that ends under a request would fail it. */
const IDLE_FOR_LONG = { requestTimeout: 0, keepAliveTimeout: 620_000, headersTimeout: 630_000 } as const;

/** Runs the server until it is told to stop (SIGTERM, SIGINT). Sandboxes go on without it. */
export async function run(argv: readonly string[]): Promise<number> {
  const { config } = loadConfig(argv);
  const logger = createLogger(config.logLevel, writeStderr);
  armOrderedFaults(config, logger);
  const stopped = new Promise<string>((resolve) => {
    for (const signal of ["SIGTERM", "SIGINT"] as const) process.once(signal, () => resolve(signal));
  });
  const server = await start(config, logger);
  logger.info("aenvd serves", { address: config.listen, version: VERSION, pid: process.pid });
  // Node writes it at its end, to which a server that is killed does not come.
  flushCompileCache();
  logger.info("stopping", { reason: await stopped });
  await server.close();
  return 0;
}

/** Everything of one server, wired; `close` undoes it in reverse. */
async function start(config: Config, logger: Logger): Promise<{ close(): Promise<void> }> {
  const paths = dataPaths(config.dataDir);
  mkdirSync(paths.run, { recursive: true, mode: 0o700 });
  const apiKey = await loadOrMakeApiKey(paths.apiKey);
  const catalog = new SqliteCatalog(paths.catalog);
  const templates = new Templates(catalog, Date.now);
  const builds = await templates.builds();
  // The newest comes first.
  const used = builds.find((build) => build.snapshot !== undefined)?.snapshot?.driver;
  const node = await startNode(config, catalog, logger, { used });
  const { orchestrator } = node;
  const cluster = new SingleNodeCluster({ node: orchestrator, templates, logger });
  const builder = new ImageBuilder({
    node: orchestrator,
    templates,
    logger,
    nowMs: Date.now,
    onPublished: () => cluster.collect(),
  });
  await templates.removeOrphans();
  await builder.recover();
  await cluster.collect();
  const snapshots = (await templates.builds()).flatMap((build) => build.snapshot ?? []);
  await orchestrator.retainSnapshots(snapshots);

  const feed = await RouteFeed.start({
    socketPath: paths.routesSocket,
    routes: orchestrator.routes,
    rouse: (id) => orchestrator.wake(id),
    wake: async (id) => {
      const sandbox = orchestrator.get(id);
      // A paused sandbox woken by traffic lives at least this long (E2B's rule).
      const timeoutMs = Math.max(sandbox?.spec.timeoutMs ?? 0, 300_000);
      await orchestrator.resumeForTraffic(id, timeoutMs);
    },
    logger,
  });
  if (node.forwarder !== undefined) feed.expect(node.forwarder);

  const api = createApi({
    cluster,
    builder,
    logger,
    apiKeys: createApiKeys([apiKey]),
    apiKeyPath: paths.apiKey,
    version: { version: VERSION, commit: config.commit, dataFormat: CATALOG_FORMAT },
    domain: config.domain,
    maxTimeoutMs: config.maxTimeoutHours * 3_600_000,
    maxResources: {
      vcpus: Math.min(cpus().length * 4, node.maxVcpus ?? Number.POSITIVE_INFINITY),
      memoryBytes: totalmem(),
      diskBytes: 512 * 1024 ** 3,
    },
    metrics: () => metricsText({ stats: orchestrator.stats(), freeBytes: freemem(), uptimeS: process.uptime() }),
  });
  const http = await listen(paths.aenvdSocket, getRequestListener(api.fetch));
  return {
    async close() {
      // There is little time: what stands ready goes while requests under way come to their end.
      await Promise.all([closeServer(http), orchestrator.endReady()]);
      await builder.close();
      await feed.close();
      await node.close();
      await catalog.close();
    },
  };
}

async function listen(socketPath: string, listener: ReturnType<typeof getRequestListener>): Promise<Server> {
  rmSync(socketPath, { force: true });
  const server = createServer(IDLE_FOR_LONG, (request, response) => {
    void listener(request, response);
  });
  await new Promise<void>((resolve, reject) => {
    server.once("error", reject);
    server.listen(socketPath, resolve);
  });
  chmodSync(socketPath, 0o600);
  return server;
}

async function closeServer(server: Server): Promise<void> {
  const closed = new Promise<void>((resolve) => server.close(() => resolve()));
  server.closeIdleConnections();
  const timer = setTimeout(() => server.closeAllConnections(), STOP_GRACE_MS);
  await closed;
  clearTimeout(timer);
}
