import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { createServer, type IncomingMessage, type RequestListener, type Server, type ServerResponse } from "node:http";
import { type AddressInfo, connect, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Route, RouteSource, SandboxId } from "#domain";
import { silentLogger } from "#lib/log";
import { Routes } from "#orchestrator";
import { RouteFeed } from "#proxy";
import { EdgeProcess } from "./process.ts";

export const ID = "iabcdefghij0123456789";

/** The edge, between an aenvd's route table and API in this process and one service inside a sandbox: this machine's loopback
 *  stands for the slot's address. */
export class World {
  readonly folder = mkdtempSync(join(tmpdir(), "aenv-edge-"));
  readonly service = createServer((request, response) => this.serve(request, response));
  /** Also the upgraded ones, which the service forgets. */
  readonly #connections = new Set<Socket>();
  /** What the service does; by default nothing. */
  serve: (request: IncomingMessage, response: ServerResponse) => void = () => {};
  readonly woken: SandboxId[] = [];
  /** How aenvd resumes a sandbox. */
  wake: (id: SandboxId) => Promise<void> = async (id) => void this.run(id, 2);
  readonly roused: SandboxId[] = [];
  /** How it lets one go on that stands still. */
  rouse: (id: SandboxId) => Promise<void> = async (id) => void this.run(id);
  routes = new Routes();
  api!: Server;
  feed!: RouteFeed;
  edge!: EdgeProcess;

  static async open(): Promise<World> {
    const world = new World();
    mkdirSync(join(world.folder, "run"));
    world.service.on("connection", (socket) => world.#connections.add(socket.on("error", () => {})));
    await new Promise<void>((resolve) => world.service.listen(0, "127.0.0.1", resolve));
    await world.startFeed();
    await world.startApi();
    world.edge = await world.startEdge();
    return world;
  }

  async close(): Promise<void> {
    await this.edge.close();
    await this.feed.close();
    for (const socket of this.#connections) socket.destroy();
    for (const server of [this.api, this.service]) await stop(server);
    rmSync(this.folder, { recursive: true, force: true });
  }

  startEdge(...flags: string[]): Promise<EdgeProcess> {
    return EdgeProcess.start(this.folder, ["-domain", "e2b.test", ...flags]);
  }

  async startFeed(routes: RouteSource = this.routes): Promise<void> {
    const wake = async (id: SandboxId): Promise<void> => {
      this.woken.push(id);
      await this.wake(id);
    };
    const rouse = async (id: SandboxId): Promise<void> => {
      this.roused.push(id);
      await this.rouse(id);
    };
    this.feed = await RouteFeed.start({ socketPath: this.routesSocket, routes, wake, rouse, logger: silentLogger });
  }

  /** As a new aenvd does, with a table of its own. */
  async restartAenvd(): Promise<void> {
    await this.feed.close();
    this.routes = new Routes();
    await this.startFeed();
    this.feed.expect(this.edge.forwarder);
  }

  async startApi(listener: RequestListener = echoPeer): Promise<void> {
    if (this.api !== undefined) await stop(this.api);
    this.api = createServer(listener);
    await new Promise<void>((resolve) => this.api.listen(join(this.folder, "run", "aenvd.sock"), resolve));
  }

  get routesSocket(): string {
    return join(this.folder, "run", "routes.sock");
  }

  get servicePort(): number {
    return (this.service.address() as AddressInfo).port;
  }

  /** Sets the route of a running sandbox; returns the revision. */
  run(sandboxId: SandboxId = ID, generation = 1, more: Partial<Route> = {}): number {
    return this.routes.set({ sandboxId, generation, autoResume: false, address: "127.0.0.1", ...more });
  }

  /** The same for one that is paused. */
  pause(more: Partial<Route> = {}): number {
    return this.routes.set({ sandboxId: ID, generation: 1, autoResume: true, ...more });
  }

  /** Asks the service of a sandbox. */
  ask(path: string, init: RequestInit & { duplex?: "half" } = {}, of = ID): Promise<Response> {
    const headers = { "E2b-Sandbox-Id": of, "E2b-Sandbox-Port": String(this.servicePort), ...(init.headers as object) };
    return fetch(`http://127.0.0.1:${this.edge.port}${path}`, { ...init, headers });
  }

  /** A connection on which a request for the service was begun: `fields` are further lines of its head. */
  dial(method: string, ...fields: string[]): Socket {
    // That a connection is reset is what many of these tests wait for.
    const socket = connect(this.edge.port, "127.0.0.1").on("error", () => {});
    const host = `Host: ${this.servicePort}-${ID}.e2b.test`;
    socket.write(`${[`${method} / HTTP/1.1`, host, ...fields].join("\r\n")}\r\n\r\n`);
    return socket;
  }
}

export async function stop(server: Server): Promise<void> {
  server.closeAllConnections();
  await new Promise((resolve) => server.close(resolve));
}

export function happens(socket: Socket, event: string): Promise<unknown> {
  return new Promise((resolve) => socket.once(event, resolve));
}

function echoPeer(request: IncomingMessage, response: ServerResponse): void {
  response.end(JSON.stringify({ url: request.url, peer: request.headersDistinct["x-aenv-peer"] }));
}
