import { Agent, type IncomingMessage, request } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";
import type { SandboxId } from "#domain";
import { ACK_PATH, FEED_PATH, LOOKUP_PATH, type RouteAnswer, WAKE_PATH } from "./wire.ts";

/** Wait between attempts to reach an aenvd that is being restarted. */
export const RECONNECT_MS = 100;
/** How long after its first failure a question to aenvd is repeated while that is being restarted. */
export const PATIENCE_MS = 10_000;
const ANSWER_TIMEOUT_MS = 10_000;
const WAKE_TIMEOUT_MS = 60_000;

/** aenvd was asked and said no, or nothing in time. Repeating it at once would not help. */
export class RefusedError extends Error {}

interface Question {
  readonly method: "GET" | "POST";
  readonly path: string;
  readonly agent: Agent;
  /** Counts from the question to the end of the answer. Absent: it may take for ever. */
  readonly timeoutMs?: number;
}

/** The edge's questions to aenvd over its routes socket. */
export class Control {
  readonly #socketPath: string;
  readonly #forwarder: string;
  // Each kind has connections of its own: a wake may wait for a slot, the slot for an acknowledgement.
  readonly #feedAgent = new Agent({ keepAlive: true, maxSockets: 4 });
  readonly #lookupAgent = new Agent({ keepAlive: true, maxSockets: 32 });
  readonly #wakeAgent = new Agent({ keepAlive: true, maxSockets: 128 });
  /** Ends a question under way, also one that has no connection yet. */
  readonly #pending = new Set<(error: Error) => void>();
  #isClosed = false;

  constructor(socketPath: string, forwarder: string) {
    this.#socketPath = socketPath;
    this.#forwarder = forwarder;
  }

  get isClosed(): boolean {
    return this.#isClosed;
  }

  /** Lines of changes, for as long as aenvd lives. */
  feed(): Promise<IncomingMessage> {
    const query = new URLSearchParams({ forwarder: this.#forwarder });
    return this.#send({ method: "GET", path: `${FEED_PATH}?${query}`, agent: this.#feedAgent });
  }

  /** Errors: it did not arrive, or was for another aenvd than the one there. */
  async acknowledge(epoch: string, revision: number): Promise<void> {
    const query = new URLSearchParams({ forwarder: this.#forwarder, epoch, revision: String(revision) });
    const path = `${ACK_PATH}?${query}`;
    const question = { method: "POST", path, agent: this.#feedAgent, timeoutMs: ANSWER_TIMEOUT_MS } as const;
    const response = await this.#send(question);
    response.resume();
    if (response.statusCode !== 204) throw new RefusedError(`aenvd answered ${response.statusCode} on ${path}`);
  }

  lookup(id: SandboxId): Promise<RouteAnswer> {
    const path = LOOKUP_PATH + id;
    return this.#ask({ method: "GET", path, agent: this.#lookupAgent, timeoutMs: ANSWER_TIMEOUT_MS });
  }

  /** Asks aenvd to resume a paused sandbox. Errors: RefusedError. */
  wake(id: SandboxId): Promise<RouteAnswer> {
    return this.#ask({ method: "POST", path: WAKE_PATH + id, agent: this.#wakeAgent, timeoutMs: WAKE_TIMEOUT_MS });
  }

  close(): void {
    this.#isClosed = true;
    for (const end of this.#pending) end(new Error("the edge is closing"));
    for (const agent of [this.#feedAgent, this.#lookupAgent, this.#wakeAgent]) agent.destroy();
  }

  /** Repeated while aenvd is not there. */
  async #ask(question: Question): Promise<RouteAnswer> {
    let giveUpAtMs: number | undefined;
    for (;;) {
      try {
        const response = await this.#send(question);
        const text = await readText(response);
        if (response.statusCode === 200) return JSON.parse(text) as RouteAnswer;
        throw new RefusedError(`aenvd answered ${response.statusCode} on ${question.path}`);
      } catch (error) {
        giveUpAtMs ??= performance.now() + PATIENCE_MS;
        if (error instanceof RefusedError || this.#isClosed || performance.now() > giveUpAtMs) throw error;
      }
      await sleep(RECONNECT_MS);
    }
  }

  #send({ method, path, agent, timeoutMs }: Question): Promise<IncomingMessage> {
    return new Promise((resolve, reject) => {
      if (this.#isClosed) throw new Error("the edge is closed");
      const outgoing = request({ socketPath: this.#socketPath, method, path, agent }, resolve);
      let timer: NodeJS.Timeout | undefined;
      // One that waits for a connection is told of its end only when it gets one, so its caller is told here.
      const end = (error: Error): void => {
        clearTimeout(timer);
        this.#pending.delete(end);
        reject(error);
        outgoing.destroy(error);
      };
      this.#pending.add(end);
      if (timeoutMs !== undefined) {
        timer = setTimeout(() => end(new RefusedError(`no answer in ${timeoutMs} ms on ${path}`)), timeoutMs);
      }
      outgoing.once("error", reject);
      outgoing.once("close", () => {
        clearTimeout(timer);
        this.#pending.delete(end);
      });
      outgoing.end();
    });
  }
}

async function readText(response: IncomingMessage): Promise<string> {
  let text = "";
  response.setEncoding("utf8");
  for await (const chunk of response) text += chunk;
  return text;
}
