import type { IncomingMessage } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";
import type { Route, SandboxId } from "#domain";
import { Control, PATIENCE_MS, RECONNECT_MS } from "./control.ts";
import type { FeedLine, RouteAnswer } from "./wire.ts";

/** After a wake that failed, its sandbox is not woken again for so long. */
const WAKE_PAUSE_MS = 1000;

export interface TableOptions {
  readonly socketPath: string;
  readonly forwarder: string;
  /** Called before a change is acknowledged: what goes by the old route must be over when it returns. */
  readonly onChange: (sandboxId: SandboxId, route: Route | undefined) => void;
}

interface Known {
  readonly route: Route;
  /** Of aenvd's table when it said so. */
  readonly revision: number;
}

/**
 * The edge's copy of the route table. It follows aenvd's feed and survives aenvd's death with what it last knew. What it does
 * not know it asks for, so an answer given by aenvd (201 after a create) is never contradicted here.
 */
export class RouteTable {
  readonly #control: Control;
  readonly #onChange: TableOptions["onChange"];
  readonly #known = new Map<SandboxId, Known>();
  readonly #wakes = new Map<SandboxId, Promise<void>>();
  readonly #following: Promise<void>;
  /** The aenvd that is followed, and how far. */
  #epoch: string | undefined;
  #revision = -1;

  constructor(options: TableOptions) {
    this.#control = new Control(options.socketPath, options.forwarder);
    this.#onChange = options.onChange;
    this.#following = this.#follow();
  }

  /** What is known at this moment. Only by this may a connection be made, with nothing awaited in between. */
  known(id: SandboxId): Route | undefined {
    return this.#known.get(id)?.route;
  }

  /** The route as known, or as aenvd says when it is not, or leads nowhere (a resume may have been answered that is still on
   *  its way here). undefined: there is no such sandbox. Errors: when aenvd does not come back in time. */
  async find(id: SandboxId): Promise<Route | undefined> {
    const known = this.known(id);
    if (known?.address !== undefined) return known;
    if (!/^[a-z0-9]{1,63}$/.test(id)) return undefined;
    await this.#lookUp(id);
    return this.known(id);
  }

  /** Asks aenvd to resume a paused sandbox; calls for one sandbox share one question, and for a moment its failure.
   *  Errors: RefusedError when it cannot be resumed now; others when aenvd does not come back in time. */
  wake(id: SandboxId): Promise<void> {
    const running = this.#wakes.get(id);
    if (running !== undefined) return running;
    const wake = this.#wake(id);
    this.#wakes.set(id, wake);
    const forget = (): void => void this.#wakes.delete(id);
    wake.then(forget, () => setTimeout(forget, WAKE_PAUSE_MS).unref());
    return wake;
  }

  async close(): Promise<void> {
    this.#control.close();
    await this.#following;
  }

  async #wake(id: SandboxId): Promise<void> {
    const answer = await this.#control.wake(id);
    if (!this.#learn(id, answer)) await this.#lookUp(id);
  }

  async #lookUp(id: SandboxId): Promise<void> {
    const giveUpAtMs = performance.now() + PATIENCE_MS;
    while (!this.#learn(id, await this.#control.lookup(id))) {
      if (performance.now() > giveUpAtMs) throw new Error("aenvd answers, but its route feed does not come");
      await sleep(RECONNECT_MS);
    }
  }

  /** False: the answer is of another aenvd than the one followed, so it may be older or newer than what is known. */
  #learn(id: SandboxId, answer: RouteAnswer): boolean {
    if (answer.epoch !== this.#epoch) return false;
    // A late answer does not undo what the feed has said since, which may be acknowledged already.
    if (answer.revision > this.#revision) this.#set(id, answer.route, answer.revision);
    return true;
  }

  async #follow(): Promise<void> {
    while (!this.#control.isClosed) {
      try {
        for await (const line of lines(await this.#control.feed())) await this.#take(JSON.parse(line) as FeedLine);
      } catch {
        // Gone or not there yet: what is known stays valid until aenvd says otherwise.
      }
      await sleep(RECONNECT_MS);
    }
  }

  async #take(line: FeedLine): Promise<void> {
    if ("snapshot" in line) this.#replace(line.snapshot);
    else {
      this.#revision = line.change.revision;
      this.#set(line.change.sandboxId, line.change.route, this.#revision);
    }
    if (this.#epoch !== undefined) await this.#control.acknowledge(this.#epoch, this.#revision);
  }

  #replace({ epoch, revision, routes }: Extract<FeedLine, { snapshot: unknown }>["snapshot"]): void {
    // Revisions of one aenvd say nothing about those of another.
    if (epoch !== this.#epoch) for (const [id, { route }] of this.#known) this.#known.set(id, { route, revision: -1 });
    this.#epoch = epoch;
    this.#revision = revision;
    const listed = new Set(routes.map((route) => route.sandboxId));
    for (const id of [...this.#known.keys()]) if (!listed.has(id)) this.#set(id, undefined, revision);
    for (const route of routes) this.#set(route.sandboxId, route, revision);
  }

  #set(id: SandboxId, route: Route | undefined, revision: number): void {
    // An answer may have been ahead of the feed.
    if ((this.#known.get(id)?.revision ?? -1) > revision) return;
    if (route === undefined) this.#known.delete(id);
    else this.#known.set(id, { route, revision });
    this.#onChange(id, route);
  }
}

/** Throws when the stream breaks; what came of an unfinished line is dropped. */
async function* lines(response: IncomingMessage): AsyncGenerator<string> {
  let rest = "";
  response.setEncoding("utf8");
  for await (const chunk of response) {
    const parts = (rest + chunk).split("\n");
    rest = parts.pop() ?? "";
    yield* parts;
  }
}
