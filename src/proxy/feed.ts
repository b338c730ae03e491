import { randomUUID } from "node:crypto";
import { chmodSync, rmSync } from "node:fs";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import { type ErrorKind, errorKind, logLevelOf, type RouteSource, type SandboxId } from "#domain";
import type { Logger } from "#lib/log";
import { startTicks } from "#lib/proc";
import {
  ACK_PATH,
  FEED_PATH,
  type FeedLine,
  forwarderProcess,
  LOOKUP_PATH,
  ROUSE_PATH,
  type RouteAnswer,
  WAKE_PATH,
} from "./wire.ts";

/** Changes an edge may be behind before it is cut off (it comes back and takes the whole table). */
const MAX_BACKLOG_BYTES = 4 * 1024 * 1024;
const CHECK_FORWARDERS_MS = 1000;
/** Why a sandbox was not woken, where its clients are told more than that: it is changing its state, or there is no room. */
const REFUSALS: Readonly<Partial<Record<ErrorKind, number>>> = { conflict: 409, exhausted: 429 };

export interface FeedDeps {
  readonly socketPath: string;
  readonly routes: RouteSource;
  /** Resumes a paused sandbox, because traffic came that may wake it. */
  readonly wake: (id: SandboxId) => Promise<void>;
  /** Lets a sandbox go on that stands still, for whatever traffic; a paused one stays so. */
  readonly rouse: (id: SandboxId) => Promise<unknown>;
  readonly logger: Logger;
}

/** aenvd's side of the route table: tells the edge, takes its acknowledgements, wakes what it asks for. */
export class RouteFeed {
  readonly #deps: FeedDeps;
  readonly #server: Server;
  readonly #timer: NodeJS.Timeout;
  readonly #forwarders = new Set<string>();
  /** Tells this aenvd from those before it: an edge's late word to one of them is none to this. */
  readonly #epoch = randomUUID();

  private constructor(deps: FeedDeps, server: Server) {
    this.#deps = deps;
    this.#server = server;
    this.#timer = setInterval(() => this.#dropDead(), CHECK_FORWARDERS_MS);
  }

  static async start(deps: FeedDeps): Promise<RouteFeed> {
    const server = createServer();
    server.requestTimeout = 0;
    rmSync(deps.socketPath, { force: true });
    await new Promise<void>((resolve, reject) => {
      server.once("error", reject);
      server.listen(deps.socketPath, resolve);
    });
    chmodSync(deps.socketPath, 0o600);
    const feed = new RouteFeed(deps, server);
    server.on("request", (request, response) => {
      feed.#handle(request, response).catch((error: unknown) => {
        deps.logger.error("route feed request failed", { path: request.url ?? "", error });
        response.destroy();
      });
    });
    return feed;
  }

  /** A forwarder that may be there from before: nothing is reused under it until it has taken in the new table. */
  expect(forwarder: string): void {
    this.#forwarders.add(forwarder);
    this.#deps.routes.attach(forwarder);
  }

  async close(): Promise<void> {
    clearInterval(this.#timer);
    this.#server.closeAllConnections();
    await new Promise<void>((resolve) => this.#server.close(() => resolve()));
  }

  async #handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const url = new URL(request.url ?? "/", "http://feed");
    if (request.method === "GET" && url.pathname === FEED_PATH) {
      return this.#stream(url.searchParams.get("forwarder") ?? "", response);
    }
    if (request.method === "POST" && url.pathname === ACK_PATH) {
      return this.#acknowledge(url.searchParams, response);
    }
    if (request.method === "GET" && url.pathname.startsWith(LOOKUP_PATH)) {
      return this.#sendRoute(response, url.pathname.slice(LOOKUP_PATH.length));
    }
    if (request.method === "POST" && url.pathname.startsWith(WAKE_PATH)) {
      return await this.#wake(this.#deps.wake, url.pathname.slice(WAKE_PATH.length), response);
    }
    if (request.method === "POST" && url.pathname.startsWith(ROUSE_PATH)) {
      return await this.#wake(this.#deps.rouse, url.pathname.slice(ROUSE_PATH.length), response);
    }
    response.writeHead(404, { "content-length": 0 }).end();
  }

  #stream(forwarder: string, response: ServerResponse): void {
    if (forwarderProcess(forwarder) === undefined) {
      response.writeHead(400, { "content-length": 0 }).end();
      return;
    }
    this.expect(forwarder);
    response.writeHead(200, { "content-type": "application/x-ndjson" });
    const write = (line: FeedLine): void => {
      response.write(`${JSON.stringify(line)}\n`);
      if (response.writableLength > MAX_BACKLOG_BYTES) response.destroy();
    };
    write({ snapshot: { epoch: this.#epoch, ...this.#deps.routes.snapshot() } });
    const unsubscribe = this.#deps.routes.subscribe((change) => write({ change }));
    response.once("close", unsubscribe);
  }

  /** Answers 409 when it was meant for another aenvd: the edge comes back and takes this one's table. */
  #acknowledge(query: URLSearchParams, response: ServerResponse): void {
    const revision = query.get("revision") ?? "";
    const isOurs = query.get("epoch") === this.#epoch && /^\d+$/.test(revision);
    if (isOurs) {
      this.#deps.routes.acknowledge(query.get("forwarder") ?? "", Number(revision), query.getAll("busy"));
    }
    response.writeHead(isOurs ? 204 : 409, isOurs ? {} : { "content-length": 0 }).end();
  }

  async #wake(wake: FeedDeps["rouse"], id: SandboxId, response: ServerResponse): Promise<void> {
    try {
      await wake(id);
    } catch (error) {
      const level = logLevelOf(error);
      if (level !== undefined) this.#deps.logger[level]("waking a sandbox failed", { sandboxId: id, error });
      const kind = errorKind(error);
      if (kind !== "not-found") {
        response.writeHead(REFUSALS[kind] ?? 503, { "content-length": 0 }).end();
        return;
      }
    }
    this.#sendRoute(response, id);
  }

  #sendRoute(response: ServerResponse, id: SandboxId): void {
    const { routes } = this.#deps;
    const route = routes.get(id);
    const answer: RouteAnswer = { epoch: this.#epoch, revision: routes.revision, ...(route && { route }) };
    const text = JSON.stringify(answer);
    const headers = { "content-type": "application/json", "content-length": Buffer.byteLength(text) };
    response.writeHead(200, headers).end(text);
  }

  /** A stream may break while its edge lives on with the old table; only the end of the process frees what it knew. */
  #dropDead(): void {
    for (const name of this.#forwarders) {
      const process = forwarderProcess(name);
      if (process !== undefined && startTicks(process.pid) === process.startTicks) continue;
      this.#forwarders.delete(name);
      this.#deps.routes.detach(name);
    }
  }
}
