import { timingSafeEqual } from "node:crypto";
import { Agent, createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { Duplex } from "node:stream";
import type { Route } from "#domain";
import type { Logger } from "#lib/log";
import {
  controlDown,
  controlLost,
  type EdgeAnswer,
  invalid,
  notFound,
  notWoken,
  paused,
  portClosed,
  refuse,
  reserved,
  send,
  wakeRefused,
  wantsHtml,
} from "./answers.ts";
import { connectionLimit, limitConnections, ownLimits } from "./connections.ts";
import { RefusedError } from "./control.ts";
import { DialError, forward, hasBody, LostError, type Upstream } from "./forward.ts";
import { Pools } from "./pools.ts";
import { RouteTable } from "./table.ts";
import { AGENT_PORT, isReserved, type Target, targetOf } from "./target.ts";
import { forwardUpgrade } from "./upgrade.ts";

export interface EdgeOptions {
  readonly host: string;
  readonly port: number;
  /** aenvd's API. */
  readonly apiSocket: string;
  /** aenvd's route feed. */
  readonly routesSocket: string;
  readonly forwarder: string;
  /** The header in which aenvd's API is told who calls. */
  readonly peerHeader: string;
  /** Clients at once, when it is not to be what the limit of open files allows. */
  readonly maxConnections?: number;
  readonly logger: Logger;
}

type SandboxTarget = Extract<Target, { kind: "sandbox" }>;
type SandboxUpstream = Upstream & Required<Pick<Upstream, "isCurrent" | "onUpgraded">>;

/** A client's connection that carries nothing ends after this; those into sandboxes end a little earlier. */
const IDLE_MS = 620_000;

/** How long an API request waits for an aenvd that is being restarted. */
const API_PATIENCE_MS = 15_000;
const API_RETRY_MS = 100;
/** Methods that may be sent again though they may have been answered, when they have no body. */
const READS = new Set(["GET", "HEAD"]);
const REROUTE_MS = 10;
/** Idle so long, a client is asked whether it is still there (by TCP, every 75 s; nine times unanswered, it is not). */
const KEEPALIVE_MS = 60_000;

/**
 * The public port. Traffic for sandboxes goes straight to their slots, everything else to aenvd over its unix socket, so a
 * killed or upgraded aenvd cuts no connection into a sandbox.
 */
export class Edge {
  readonly #options: EdgeOptions;
  readonly #server: Server;
  readonly #pools = new Pools();
  readonly #table: RouteTable;
  readonly #upgraded = new Set<Duplex>();
  readonly #apiAgent = new Agent({ keepAlive: true, maxSockets: 256 });

  private constructor(options: EdgeOptions, server: Server) {
    this.#options = options;
    this.#server = server;
    this.#table = new RouteTable({
      socketPath: options.routesSocket,
      forwarder: options.forwarder,
      onChange: (id, route) => this.#pools.keepOnly(id, route),
    });
  }

  /** Listens; errors: the address is taken or not ours. */
  static async start(options: EdgeOptions): Promise<Edge> {
    const server = createServer({
      keepAliveTimeout: IDLE_MS,
      // Counts from the connection on, and pools open some ahead: the 408 that one gets which has sent nothing yet would be taken
      // for the answer to the request that is just on its way.
      headersTimeout: IDLE_MS + 10_000,
      // Bodies and answers take as long as they take; only clients that are gone are told apart.
      requestTimeout: 0,
      keepAlive: true,
      keepAliveInitialDelay: KEEPALIVE_MS,
      // An offer to speak HTTP/2 in clear text may be ignored, and is: the request is an ordinary one.
      shouldUpgradeCallback: (request) => request.headers.upgrade?.toLowerCase() !== "h2c",
    });
    limitConnections(server, options.maxConnections ?? connectionLimit(ownLimits()), options.logger);
    const edge = new Edge(options, server);
    server.on("request", (request, response) => edge.#onRequest(request, response));
    server.on("upgrade", (request, socket, head) => edge.#onUpgrade(request, socket, head));
    await new Promise<void>((resolve, reject) => {
      server.once("error", reject);
      server.listen(options.port, options.host, resolve);
    });
    return edge;
  }

  get port(): number {
    const address = this.#server.address();
    return typeof address === "object" && address !== null ? address.port : this.#options.port;
  }

  async close(): Promise<void> {
    const closed = new Promise<void>((resolve) => this.#server.close(() => resolve()));
    this.#server.closeAllConnections();
    await this.#table.close();
    // The server no longer knows those.
    for (const socket of this.#upgraded) socket.destroy();
    this.#pools.close();
    await closed;
    this.#apiAgent.destroy();
  }

  #onRequest(request: IncomingMessage, response: ServerResponse): void {
    this.#handle(request, response).catch((error: unknown) => {
      // The client going away is its own business.
      if (!response.destroyed) this.#options.logger.warn("request failed", { path: request.url ?? "", error });
      try {
        send(response, controlDown(), false);
      } catch {
        response.destroy();
      }
    });
  }

  async #handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const target = targetOf(headOf(request));
    if (target.kind === "api") return await this.#toApi(request, response);
    const html = wantsHtml(headOf(request).header);
    if (target.kind === "invalid") return send(response, invalid(target.message), html);
    for (;;) {
      const found = await this.#resolve(target, request);
      if (response.destroyed) return;
      if ("status" in found) return send(response, found, html);
      try {
        return await forward(request, response, found);
      } catch (error) {
        if (response.destroyed) return;
        const isGone = !found.isCurrent();
        if (error instanceof DialError && isGone) {
          // Nothing was sent yet: the next incarnation gets it, if there is one.
          await new Promise((resolve) => setTimeout(resolve, REROUTE_MS));
          continue;
        }
        return send(response, isGone ? notFound(target.sandboxId) : portClosed(target.sandboxId, target.port), html);
      }
    }
  }

  async #toApi(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { apiSocket, peerHeader } = this.#options;
    const upstream: Upstream = {
      options: { socketPath: apiSocket, agent: this.#apiAgent },
      path: request.url ?? "/",
      extraHeaders: [peerHeader, request.socket.remoteAddress ?? ""],
      without: new Set([peerHeader]),
    };
    const giveUpAtMs = performance.now() + API_PATIENCE_MS;
    for (;;) {
      try {
        return await forward(request, response, upstream);
      } catch (error) {
        if (response.destroyed) return;
        const isLost = error instanceof LostError;
        if (!isLost && !(error instanceof DialError)) throw error;
        const mayRepeat = READS.has(request.method ?? "") && !hasBody(request);
        if (isLost && !mayRepeat) return send(response, controlLost(), false);
        if (performance.now() > giveUpAtMs) return send(response, controlDown(), false);
      }
      await new Promise((resolve) => setTimeout(resolve, API_RETRY_MS));
    }
  }

  #onUpgrade(request: IncomingMessage, socket: Duplex, head: Buffer): void {
    this.#upgraded.add(socket);
    socket.once("close", () => this.#upgraded.delete(socket));
    socket.once("error", () => socket.destroy());
    this.#upgrade(request, socket, head).catch(() => socket.destroy());
  }

  async #upgrade(request: IncomingMessage, socket: Duplex, head: Buffer): Promise<void> {
    const target = targetOf(headOf(request));
    if (target.kind === "api") return refuse(socket, invalid("the API has no upgraded connections"));
    if (target.kind === "invalid") return refuse(socket, invalid(target.message));
    const found = await this.#resolve(target, request);
    if ("status" in found) return refuse(socket, found);
    forwardUpgrade(request, socket, head, found, (to) => refuse(to, portClosed(target.sandboxId, target.port)));
  }

  /** Where the target's traffic goes now, waking it when it may be woken; or what to answer instead. */
  async #resolve(target: SandboxTarget, request: IncomingMessage): Promise<SandboxUpstream | EdgeAnswer> {
    if (isReserved(target.port, target.path)) return reserved(target.path.split("?", 1)[0] ?? target.path);
    const route = await this.#table.find(target.sandboxId);
    if (route === undefined) return notFound(target.sandboxId);
    if (route.address === undefined) {
      if (!route.autoResume) return target.viaProxyPath ? paused(target.sandboxId) : notFound(target.sandboxId);
      if (!mayWake(route, target, request)) return wakeRefused(target.sandboxId);
      try {
        await this.#table.wake(target.sandboxId);
      } catch (error) {
        if (!(error instanceof RefusedError)) throw error;
        return notWoken(target.sandboxId);
      }
    }
    return this.#upstreamTo(target);
  }

  /** Awaits nothing: what was answered may have been taken back since, and its address given to another sandbox. */
  #upstreamTo(target: SandboxTarget): SandboxUpstream | EdgeAnswer {
    const route = this.#table.known(target.sandboxId);
    const address = route?.address;
    if (route === undefined || address === undefined) return notFound(target.sandboxId);
    const pool = this.#pools.of(route);
    return {
      options: { host: address, port: target.port, agent: pool },
      path: target.path,
      isCurrent: () => !pool.isRetired,
      onUpgraded: (socket) => pool.keep(socket),
    };
  }
}

/** A secured sandbox's agent wakes it only for who could use it; other ports are its services' own business. */
function mayWake(route: Route, target: SandboxTarget, request: IncomingMessage): boolean {
  if (target.port !== AGENT_PORT || route.accessToken === undefined) return true;
  const shown = Buffer.from(headOf(request).header("x-access-token") ?? "");
  const wanted = Buffer.from(route.accessToken);
  return shown.length === wanted.length && timingSafeEqual(shown, wanted);
}

function headOf(request: IncomingMessage) {
  return {
    url: request.url ?? "/",
    host: request.headers.host,
    header: (name: string): string | undefined => {
      const value = request.headers[name];
      return Array.isArray(value) ? value[0] : value;
    },
  };
}
