import { Agent, type ClientRequestArgs } from "node:http";
import { type Duplex, PassThrough } from "node:stream";
import type { Route, SandboxId } from "#domain";

/** Connections one sandbox may have open from this edge, to all of its ports; far above what its clients use, a bound all the same. */
const MAX_SOCKETS = 4096;
/** Idle connections into a sandbox end before those to the client do. */
const IDLE_MS = 610_000;

/** The connections into one incarnation of a sandbox. Retired, it has none and makes none: its address is somebody else's soon. */
export class Pool extends Agent {
  readonly generation: number;
  readonly address: string | undefined;
  readonly #upgraded = new Set<Duplex>();
  #retired = false;

  constructor(route: Route) {
    super({ keepAlive: true, maxTotalSockets: MAX_SOCKETS, maxFreeSockets: 64, timeout: IDLE_MS });
    this.generation = route.generation;
    this.address = route.address;
  }

  get isRetired(): boolean {
    return this.#retired;
  }

  retire(): void {
    this.#retired = true;
    this.destroy();
    for (const socket of this.#upgraded) socket.destroy();
  }

  /** Takes in a connection that was upgraded, which the agent gives up. */
  keep(socket: Duplex): void {
    this.#upgraded.add(socket);
    socket.once("close", () => this.#upgraded.delete(socket));
    if (this.#retired) socket.destroy();
  }

  override createConnection(
    options: ClientRequestArgs,
    callback?: (error: Error | null, stream: Duplex) => void,
  ): Duplex | null | undefined {
    if (!this.#retired) return super.createConnection(options, callback);
    callback?.(new Error("this incarnation of the sandbox has ended"), new PassThrough());
    return undefined;
  }
}

/**
 * A pool for each incarnation: after a resume the peer's TCP state is another, and a connection of the old one would hang.
 * When an incarnation ends, so do all of its connections, at once.
 */
export class Pools {
  readonly #pools = new Map<SandboxId, Pool>();

  /** Precondition: the route has an address and is the one known at this moment; `keepOnly` is told when it no longer is. */
  of(route: Route): Pool {
    const found = this.#pools.get(route.sandboxId);
    if (found !== undefined && isOf(found, route)) return found;
    found?.retire();
    const pool = new Pool(route);
    this.#pools.set(route.sandboxId, pool);
    return pool;
  }

  /** Ends the connections of every incarnation but the route's. */
  keepOnly(sandboxId: SandboxId, route: Route | undefined): void {
    const found = this.#pools.get(sandboxId);
    if (found === undefined || (route?.address !== undefined && isOf(found, route))) return;
    found.retire();
    this.#pools.delete(sandboxId);
  }

  close(): void {
    for (const pool of this.#pools.values()) pool.retire();
    this.#pools.clear();
  }
}

function isOf(pool: Pool, route: Route): boolean {
  return pool.generation === route.generation && pool.address === route.address;
}
