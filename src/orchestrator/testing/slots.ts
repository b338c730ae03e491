import { createServer, type Server } from "node:http";
import { AenvError, type NetworkPolicy } from "#domain";
import { AGENT_PORT } from "#guest";
import type { HeldSlot, Slot, Slots } from "#network";
import type { Script } from "./script.ts";

/** Answers as the agents of all machines, each at the address of its slot. */
export class FakeAgents {
  readonly #servers = new Map<string, Server>();
  readonly #script: Script;
  /** What the agents were told of who they are, in order. */
  readonly told: {
    readonly sandboxId: string;
    readonly generation: number;
    readonly generationId: string;
    readonly accessToken?: string;
  }[] = [];
  /** Keys that inits came with; undefined: as to a machine just booted. */
  readonly keys: (string | undefined)[] = [];
  /** How often they were asked for logs or metrics. */
  questions = 0;
  /** `freeze` and `thaw`, in order. */
  readonly disk: string[] = [];
  /** Awaited before each init. */
  pace: () => Promise<void> = async () => {};

  constructor(script: Script) {
    this.#script = script;
  }

  async listen(address: string): Promise<void> {
    const server = createServer(async (request, response) => {
      let body = "";
      for await (const chunk of request) body += chunk;
      if (request.url === "/telemetry") {
        // Nothing is ever logged: who awaits an entry gets none.
        if (JSON.parse(body).await === true) return;
        this.questions += 1;
        return response.end('{"entries":[],"more":false}');
      }
      try {
        if (request.url === "/fsfreeze" || request.url === "/fsthaw") {
          this.#script.mayFail("freeze");
          this.disk.push(request.url.slice("/fs".length));
          response.writeHead(204).end();
          return;
        }
        this.#script.mayFail(request.url === "/init" ? "init" : "health");
        if (request.url === "/init") {
          await this.pace();
          this.told.push(JSON.parse(body));
          this.keys.push(request.headers["x-init-key"]?.toString());
        }
        response.writeHead(204).end();
      } catch {
        response.writeHead(500).end("as the test wants");
      }
    });
    await new Promise<void>((resolve, reject) => {
      server.once("error", reject);
      server.listen(AGENT_PORT, address, resolve);
    });
    this.#servers.set(address, server);
  }

  async close(address?: string): Promise<void> {
    for (const [of, server] of this.#servers) {
      if (address !== undefined && of !== address) continue;
      this.#servers.delete(of);
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    }
  }
}

export class FakeSlots implements Slots {
  readonly #script: Script;
  readonly #agents: FakeAgents;
  readonly #held = new Map<number, Slot>();
  /** Held by an earlier server. */
  readonly #known = new Set<number>();
  /** By index: of whoever has, or last had, the slot. */
  readonly policies: NetworkPolicy[] = [];
  total = 200;
  /** Loopback addresses of this run: others may test beside. */
  readonly #network = `127.${100 + (process.pid % 100)}.${Math.floor(Math.random() * 255)}`;

  constructor(script: Script, agents: FakeAgents) {
    this.#script = script;
    this.#agents = agents;
  }

  heldIndexes(): number[] {
    return [...this.#held.keys()];
  }

  /** The server that held them is gone; they are not. */
  forget(): void {
    for (const index of this.#held.keys()) this.#known.add(index);
    this.#held.clear();
  }

  async acquire(policy: NetworkPolicy): Promise<Slot> {
    this.#script.mayFail("slot");
    if (this.#held.size >= this.total) throw new AenvError("exhausted", "all slots are in use");
    let index = 0;
    while (this.#held.has(index)) index += 1;
    this.policies[index] = policy;
    return this.#hold(index);
  }

  async release(slot: Slot): Promise<void> {
    if (this.#held.get(slot.index) !== slot) return;
    this.#held.delete(slot.index);
    await this.#agents.close(slot.hostAddress);
  }

  async recover(held: readonly HeldSlot[]): Promise<Slot[]> {
    const found: Slot[] = [];
    for (const index of new Set(held.map((slot) => slot.index))) {
      if (this.#known.delete(index)) found.push(await this.#hold(index));
    }
    for (const index of this.#known) await this.#agents.close(this.#address(index));
    this.#known.clear();
    return found;
  }

  stats(): { readonly free: number; readonly total: number } {
    return { free: this.total - this.#held.size, total: this.total };
  }

  async close(): Promise<void> {}

  async #hold(index: number): Promise<Slot> {
    const slot = {
      index,
      hostAddress: this.#address(index),
      netnsPath: `/run/netns/fake${index}`,
      device: "eth0",
      macAddress: "02:00:00:00:00:01",
      address: "169.254.0.21/30",
      gateway: "169.254.0.22",
      gatewayMacAddress: "02:00:00:00:00:02",
      mtuBytes: 1500,
    };
    this.#held.set(index, slot);
    await this.#agents.close(slot.hostAddress);
    await this.#agents.listen(slot.hostAddress);
    return slot;
  }

  #address(index: number): string {
    return `${this.#network}.${index + 1}`;
  }
}
