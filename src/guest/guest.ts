import { createHmac } from "node:crypto";
import { Agent, type IncomingMessage, request } from "node:http";
import type { Socket } from "node:net";
import { AenvError, newToken } from "#domain";
import { parseTelemetry, type TelemetryAnswer } from "./telemetry.ts";

/** The port the agent listens on inside every sandbox (E2B's). */
export const AGENT_PORT = 49983;

/** Who the restored machine is now. Replaces everything the agent knew. */
export interface GuestIdentity {
  readonly sandboxId: string;
  readonly templateId: string;
  /** Which start of the sandbox's state this is, from 1; 0 in the machine that a template is captured from. */
  readonly generation: number;
  readonly hostname: string;
  /** Absent: the agent answers anybody. */
  readonly accessToken?: string;
  readonly env: Readonly<Record<string, string>>;
  readonly defaultUser: string;
  readonly defaultWorkdir?: string;
  /** What the next init has to show. */
  readonly initKey: string;
}

/** A process that was killed for the memory it held. */
export interface MemoryVictim {
  readonly pid: number;
  readonly name: string;
  /** Small ones that were killed with it. */
  readonly others: number;
  /** What all of them held; what they share is counted for each. */
  readonly bytes: number;
}

const MEMORY_TIMEOUT_MS = 5_000;
const READY_ANSWER_MS = 500;
const AWAIT_CONNECT_MS = 2_000;

/** A connection that nothing was asked by for so long is closed on this side: the agent of a machine that stood still for longer
 *  would close it at the moment it is used again. */
const IDLE_MS = 300_000;
/** Later than that: a probe of an idle connection wakes the machine's runtime, also when it stands still. Node's is each second. */
const PROBE_AFTER_MS = 2 * IDLE_MS;
/** What a sandbox has written and its disk has not taken yet may be as much as its memory. */
const FREEZE_TIMEOUT_MS = 60_000;

const MAX_ANSWER_CHARS = 512 * 1024;
/** What is passed on of a refusal: whoever runs inside may have written it. */
const REFUSAL_CHARS = 200;

interface Question {
  readonly method: "GET" | "POST";
  readonly path: string;
  readonly headers?: Record<string, string>;
  readonly body?: string;
  /** How long connecting may take, where that is less than all of it. */
  readonly connectMs?: number;
}

interface Answer {
  readonly status: number;
  readonly body: string;
}

/**
 * The agent of one incarnation of a sandbox. Connections are its own: after a restore the peer's TCP state is another, so
 * nothing is ever reused across incarnations.
 */
export class Guest {
  readonly #host: string;
  readonly #initTimeoutMs: number;
  readonly #closed = new AbortController();
  readonly #agent = new Agent({
    keepAlive: true,
    keepAliveMsecs: PROBE_AFTER_MS,
    maxSockets: 4,
    timeout: IDLE_MS,
  });

  /** `initTimeoutMs`: how long the agent may take for its identity, the 5 s of its hook included. */
  constructor(hostAddress: string, initTimeoutMs: number) {
    this.#host = hostAddress;
    this.#initTimeoutMs = initTimeoutMs;
  }

  /** Returns when the agent answers. A machine just restored drops what arrives too early, so attempts to connect are short
   *  and many; one that is connected has time, which it needs where the processor is busy. Errors: deadline. */
  async waitReady(deadlineMs: number, signal: AbortSignal): Promise<void> {
    const giveUpAtMs = performance.now() + deadlineMs;
    let last: unknown;
    for (let connectMs = 15; performance.now() < giveUpAtMs; connectMs = Math.min(connectMs * 1.5, 1000)) {
      signal.throwIfAborted();
      const startedAtMs = performance.now();
      try {
        const answer = await this.#send({ method: "GET", path: "/health", connectMs }, connectMs + READY_ANSWER_MS);
        if (answer.status < 300) return;
        last = new Error(`agent answered ${answer.status}`);
      } catch (error) {
        last = error;
      }
      // A refused connection comes back at once: the agent is not listening yet.
      if (performance.now() - startedAtMs < 2) await new Promise((resolve) => setTimeout(resolve, 2));
    }
    throw new AenvError("deadline", `the sandbox's agent did not answer within ${deadlineMs} ms`, { cause: last });
  }

  /** Gives the machine its identity, clock and fresh entropy, and returns when its own hook, if it has one, has run or used up
   *  its 5 s. `currentKey` is the one it was captured with. Repeatable: when an answer was lost, the new key is accepted as
   *  well, and the hook does not run twice for one identity. */
  async init(identity: GuestIdentity, currentKey: string | undefined): Promise<void> {
    const { env: envVars, ...known } = identity;
    await this.#init({ ...known, envVars, generationId: generationIdOf(identity) }, currentKey);
  }

  /** Tells a machine that nobody is routed to yet who it is to be. What takes time of an init is done then, its hook excepted,
   *  and the agent answers nobody until the init. `currentKey`, repeats: as with `init`. */
  async prepare(
    future: Pick<GuestIdentity, "sandboxId" | "templateId" | "hostname" | "defaultUser" | "initKey">,
    currentKey: string | undefined,
  ): Promise<void> {
    await this.#init({ ...future, accessToken: newToken(), rehearse: true }, currentKey);
  }

  async #init(
    facts: Pick<GuestIdentity, "initKey"> & Readonly<Record<string, unknown>>,
    currentKey: string | undefined,
  ): Promise<void> {
    const body = JSON.stringify({
      ...facts,
      timestamp: new Date().toISOString(),
      entropy: Buffer.from(crypto.getRandomValues(new Uint8Array(32))).toString("base64"),
    });
    for (const key of [currentKey, facts.initKey]) {
      const headers = { "content-type": "application/json", ...(key !== undefined && { "x-init-key": key }) };
      const answer = await this.#send({ method: "POST", path: "/init", headers, body }, this.#initTimeoutMs);
      if (answer.status < 300) return;
      if (answer.status !== 401) {
        throw new AenvError(
          "internal",
          `the sandbox's agent refused its identity: ${answer.status} ${answer.body.slice(0, REFUSAL_CHARS)}`,
        );
      }
    }
    throw new AenvError("internal", "the sandbox's agent does not accept the key it was captured with");
  }

  /** Kills the process that holds the most memory; undefined when none holds enough to be worth it. */
  async freeMemory(initKey: string): Promise<MemoryVictim | undefined> {
    const { status, body } = await this.#memory({}, initKey);
    return status === 200 ? (JSON.parse(body) as MemoryVictim) : undefined;
  }

  /** Says that the host's kernel has killed processes of this sandbox for memory: the commands' ends will tell. */
  async hostKilled(count: number, initKey: string): Promise<void> {
    await this.#memory({ hostKilled: count }, initKey);
  }

  /** The disk is written out and stands still, until it is thawed or the machine has run 10 s more. Errors: conflict (it was
   *  made by an agent, or booted in a way, that does not know how). */
  async freezeDisk(initKey: string): Promise<void> {
    const answer = await this.#send(
      { method: "POST", path: "/fsfreeze", headers: { "x-init-key": initKey } },
      FREEZE_TIMEOUT_MS,
    );
    if (answer.status < 300) return;
    if (answer.status === 404 || answer.status === 501) {
      throw new AenvError("conflict", "this sandbox is of a template too old to be kept without its memory", {
        hint: "pause it with its memory; new sandboxes can be kept so when the template has been built again",
      });
    }
    throw new AenvError(
      "internal",
      `the sandbox's agent answered ${answer.status} to /fsfreeze: ${answer.body.slice(0, REFUSAL_CHARS)}`,
    );
  }

  async thawDisk(initKey: string): Promise<void> {
    const answer = await this.#send(
      { method: "POST", path: "/fsthaw", headers: { "x-init-key": initKey } },
      MEMORY_TIMEOUT_MS,
    );
    if (answer.status >= 300)
      throw new AenvError("internal", `the sandbox's agent answered ${answer.status} to /fsthaw`);
  }

  /** What the agent has logged since the entry with the id `afterUs`, which the caller has stored, and with `metrics` a reading
   *  of the machine. undefined: it is of a build that keeps no log. */
  async telemetry(
    initKey: string,
    {
      afterUs,
      metrics,
      timeoutMs,
    }: { readonly afterUs: number; readonly metrics: boolean; readonly timeoutMs: number },
  ): Promise<TelemetryAnswer | undefined> {
    const headers = { "content-type": "application/json", "x-init-key": initKey };
    const body = JSON.stringify({ after: afterUs, metrics });
    const answer = await this.#send({ method: "POST", path: "/telemetry", headers, body }, timeoutMs);
    if (answer.status === 200) return parseTelemetry(answer.body);
    // An older agent finds no route, or asks for its token first.
    if (answer.status === 404 || answer.status === 401) return undefined;
    throw new AenvError("internal", `the sandbox's agent answered ${answer.status} to /telemetry`);
  }

  /** Returns when the agent has logged something after the entry with the id `afterUs`. Until then it costs the machine nothing, and
   *  nothing breaks it off while that stands still. False: its build cannot await, and answered at once. Rejects when `signal` aborts, and
   *  when the connections are closed or break. */
  async awaitEntry(
    initKey: string,
    { afterUs, signal }: { readonly afterUs: number; readonly signal: AbortSignal },
  ): Promise<boolean> {
    const headers = { "content-type": "application/json", "x-init-key": initKey };
    const body = JSON.stringify({ after: afterUs, await: true });
    const either = AbortSignal.any([signal, this.#closed.signal]);
    const { status } = await this.#exchange(
      { method: "POST", path: "/telemetry", headers, body, connectMs: AWAIT_CONNECT_MS },
      either,
    );
    return status === 204;
  }

  /** Ends all connections. Repeatable. */
  close(): void {
    this.#closed.abort();
    this.#agent.destroy();
  }

  async #memory(body: object, initKey: string): Promise<Answer> {
    const headers = { "content-type": "application/json", "x-init-key": initKey };
    const question: Question = { method: "POST", path: "/memory", headers, body: JSON.stringify(body) };
    const answer = await this.#send(question, MEMORY_TIMEOUT_MS);
    if (answer.status >= 300)
      throw new AenvError("internal", `the sandbox's agent answered ${answer.status} to /memory`);
    return answer;
  }

  /** Errors: deadline. */
  async #send(question: Question, timeoutMs: number): Promise<Answer> {
    const signal = AbortSignal.timeout(Math.ceil(timeoutMs));
    try {
      return await this.#exchange(question, signal);
    } catch (cause) {
      if (!signal.aborted) throw cause;
      const asked = `${question.method} ${question.path}`;
      const late = `the sandbox's agent did not answer ${asked} within ${Math.ceil(timeoutMs)} ms`;
      throw new AenvError("deadline", late, { cause });
    }
  }

  async #exchange({ body, connectMs, ...question }: Question, signal: AbortSignal): Promise<Answer> {
    // It would connect once more, to whoever has the address then.
    this.#closed.signal.throwIfAborted();
    const response = await new Promise<IncomingMessage>((resolve, reject) => {
      const options = { ...question, host: this.#host, port: AGENT_PORT, agent: this.#agent, signal };
      const outgoing = request(options, resolve);
      if (connectMs !== undefined) outgoing.once("socket", (socket) => limitConnecting(socket, connectMs));
      outgoing.once("error", reject);
      outgoing.end(body);
    });
    let text = "";
    response.setEncoding("utf8");
    for await (const chunk of response) {
      text += chunk;
      // Whoever runs inside may have taken the agent's port: an answer that does not end is cut off.
      if (text.length > MAX_ANSWER_CHARS) response.destroy(new Error("the agent's answer is too long"));
    }
    return { status: response.statusCode ?? 0, body: text };
  }
}

/** Another for each start of a state, and the same however often the agent is told of it and by whom. Nobody can foretell it
 *  without the key, and it does not give the key away. */
function generationIdOf({ sandboxId, generation, initKey }: GuestIdentity): string {
  return createHmac("sha256", initKey).update(`${sandboxId} ${generation}`).digest("hex").slice(0, 32);
}

/** Ends a socket that is not connected in time. */
function limitConnecting(socket: Socket, timeoutMs: number): void {
  if (!socket.connecting) return;
  const timer = setTimeout(() => socket.destroy(new Error(`no connection within ${timeoutMs} ms`)), timeoutMs);
  const clear = (): void => clearTimeout(timer);
  socket.once("connect", clear).once("close", clear);
}
