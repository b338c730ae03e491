import { Agent } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";
import { type Client, Code, ConnectError, createClient } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";
import { Keeper as KeeperService } from "#gen/aenv/keeper/v1/keeper_pb.js";
import { hasCode } from "./files.ts";
import { Semaphore } from "./mutex.ts";
import { startTicks as currentTicks } from "./proc.ts";
import {
  CommandError,
  type CommandResult,
  type CommandRunner,
  type ProcessExit,
  type ProcessWatcher,
  RunnerLostError,
  type RunOptions,
} from "./run.ts";

/** The node's keeper, which starts processes and tells of their ends. Survives restarts of the keeper. */
export interface Keeper extends CommandRunner, ProcessWatcher {
  /** Throws when the keeper cannot be reached. */
  status(): Promise<KeeperStatus>;
  /** Stops a service and starts it again from its current definition. Returns the new pid.
   *  Throws when there is no such service, or it could not be started. */
  restartService(name: string): Promise<number>;
  /** Ends all calls under way with an error. Promises of `exited` still pending stay so and hold nothing. */
  close(): Promise<void>;
}

export interface KeeperStatus {
  readonly pid: number;
  /** Differs after each start of the keeper. */
  readonly epoch: string;
  readonly version: string;
  readonly services: readonly ServiceStatus[];
}

export interface ServiceStatus {
  readonly name: string;
  /** 0 while it does not run. */
  readonly pid: number;
  /** "running", "backoff" (waiting for its next start) or "stopped". */
  readonly state: string;
  readonly restarts: number;
  readonly startedAtMs: number;
  readonly logFile: string;
}

type KeeperClient = Client<typeof KeeperService>;

/** How long a call waits for a keeper that does not listen (it is being restarted) before it fails. */
const REACH_TIMEOUT_MS = 5000;
const FIRST_RETRY_MS = 20;
const LAST_RETRY_MS = 1000;
/** After any event there can be: only what comes from now on. */
const NEWEST_SEQ = 2n ** 64n - 1n;
const MAX_PID = 2 ** 22;
const TRACKS_AT_ONCE = 16;

/** Connects to the keeper that listens at a unix socket. Nothing is sent before the first call. */
export function connectKeeper(socketPath: string): Keeper {
  const agent = new Agent({ keepAlive: true, maxFreeSockets: 16 });
  const transport = createConnectTransport({
    httpVersion: "1.1",
    baseUrl: "http://keeper",
    acceptCompression: [],
    nodeOptions: { socketPath, agent },
  });
  return new ConnectedKeeper(socketPath, createClient(KeeperService, transport), agent);
}

class ConnectedKeeper implements Keeper {
  readonly #socketPath: string;
  readonly #client: KeeperClient;
  readonly #agent: Agent;
  readonly #exits: ExitStream;
  readonly #closed = new AbortController();

  constructor(socketPath: string, client: KeeperClient, agent: Agent) {
    this.#socketPath = socketPath;
    this.#client = client;
    this.#agent = agent;
    this.#exits = new ExitStream(client, this.#closed.signal);
  }

  async run(argv: readonly string[], options: RunOptions = {}): Promise<CommandResult> {
    const { stdin } = options;
    const request = {
      argv: [...argv],
      env: { ...options.env },
      cwd: options.cwd ?? "",
      stdin: typeof stdin === "string" ? new TextEncoder().encode(stdin) : (stdin ?? new Uint8Array()),
      timeoutMs: options.timeoutMs ?? 0,
      logFile: options.logFile ?? "",
      discardOutput: options.discardOutput ?? false,
      netnsPath: options.netnsPath ?? "",
    };
    const { exitCode, signal, stdout, stderr, timedOut, truncated } = await this.#call(`run ${argv[0]}`, (signal) =>
      this.#client.run(request, { signal }),
    );
    const result = { exitCode, signal, stdout, stderr, timedOut, truncated };
    if (exitCode !== 0 && options.check !== false) throw new CommandError(argv, result);
    return result;
  }

  exited(pid: number, startTicks: bigint): Promise<ProcessExit> {
    return this.#exits.exited(pid, startTicks);
  }

  async status(): Promise<KeeperStatus> {
    const status = await this.#call("status", (signal) => this.#client.status({}, { signal }));
    return {
      pid: status.pid,
      epoch: status.epoch,
      version: status.version,
      services: status.services.map((service) => ({
        name: service.name,
        pid: service.pid,
        state: service.state,
        restarts: service.restarts,
        startedAtMs: Number(service.startedAtUnixMs),
        logFile: service.logFile,
      })),
    };
  }

  async restartService(name: string): Promise<number> {
    const answer = await this.#call(`restart ${name}`, (signal) => this.#client.restartService({ name }, { signal }));
    return answer.pid;
  }

  async close(): Promise<void> {
    this.#closed.abort();
    await this.#exits.ended();
    this.#agent.destroy();
  }

  /** Only a call that never reached a keeper is made again: what has arrived may have been done. */
  async #call<T>(what: string, call: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const giveUpAtMs = Date.now() + REACH_TIMEOUT_MS;
    for (let delayMs = FIRST_RETRY_MS; ; delayMs = Math.min(2 * delayMs, LAST_RETRY_MS)) {
      try {
        return await call(this.#closed.signal);
      } catch (error) {
        const failure = ConnectError.from(error);
        if (neverArrived(failure) && Date.now() + delayMs < giveUpAtMs && !this.#closed.signal.aborted) {
          await sleep(delayMs);
          continue;
        }
        const refused = failure.code === Code.FailedPrecondition || failure.code === Code.InvalidArgument;
        throw refused
          ? new Error(failure.rawMessage, { cause: error })
          : new RunnerLostError(`keeper at ${this.#socketPath}: ${what}: ${failure.rawMessage}`, { cause: error });
      }
    }
  }
}

function neverArrived(error: ConnectError): boolean {
  return hasCode(error.cause, "ECONNREFUSED", "ENOENT");
}

interface Awaited {
  readonly pid: number;
  readonly startTicks: bigint;
  readonly exit: PromiseWithResolvers<ProcessExit>;
}

/**
 * One stream of exits for all who wait. Whenever it is opened, at first or again (the keeper was restarted, or this side
 * fell behind), all processes still waited for are tracked anew, and the keeper tells at once of those already gone: no
 * position in the stream has to be remembered.
 */
class ExitStream {
  readonly #client: KeeperClient;
  readonly #closed: AbortSignal;
  readonly #awaited = new Map<string, Awaited>();
  readonly #tracking = new Set<Promise<void>>();
  readonly #trackSlots = new Semaphore(TRACKS_AT_ONCE);
  /** Of the stream that is open; aborting it opens another. */
  #stream: AbortController | undefined;
  #loop: Promise<void> | undefined;

  constructor(client: KeeperClient, closed: AbortSignal) {
    this.#client = client;
    this.#closed = closed;
  }

  exited(pid: number, startTicks: bigint): Promise<ProcessExit> {
    if (!Number.isInteger(pid) || pid <= 1 || pid > MAX_PID) throw new RangeError(`${pid} is not the pid of a process`);
    // The process meant by 0 is the one there now, not one that has its pid when the keeper is asked again.
    const ticks = startTicks === 0n ? currentTicks(pid) : startTicks;
    if (ticks === undefined) return Promise.resolve({ exitCode: -1, signal: 0, atMs: Date.now() });
    const key = keyOf(pid, ticks);
    const known = this.#awaited.get(key);
    if (known !== undefined) return known.exit.promise;
    const awaited = { pid, startTicks: ticks, exit: Promise.withResolvers<ProcessExit>() };
    this.#awaited.set(key, awaited);
    if (this.#stream !== undefined) this.#track(awaited, this.#stream);
    this.#loop ??= this.#follow();
    return awaited.exit.promise;
  }

  /** Preconditions: the signal given at construction is aborted. */
  async ended(): Promise<void> {
    await this.#loop;
    await Promise.all(this.#tracking);
    this.#awaited.clear();
  }

  async #follow(): Promise<void> {
    let delayMs = FIRST_RETRY_MS;
    while (!this.#closed.aborted) {
      if (await this.#readOnce()) delayMs = FIRST_RETRY_MS;
      this.#stream = undefined;
      // Ends early, by throwing, only on close.
      await sleep(delayMs, undefined, { signal: this.#closed }).catch(() => {});
      delayMs = Math.min(2 * delayMs, LAST_RETRY_MS);
    }
  }

  /** Reads one stream to its end, whatever ends it. True when it had been open. */
  async #readOnce(): Promise<boolean> {
    const stream = new AbortController();
    const signal = AbortSignal.any([stream.signal, this.#closed]);
    try {
      for await (const event of this.#client.exits({ afterSeq: NEWEST_SEQ }, { signal })) {
        if (this.#stream !== stream) {
          // The first message says that the keeper has subscribed us: nothing told from here on is missed.
          this.#stream = stream;
          for (const awaited of this.#awaited.values()) this.#track(awaited, stream);
        }
        if (event.pid !== 0) this.#settle(keyOf(event.pid, event.startTicks), event);
      }
    } catch {
      // The keeper is away, or we were cut off: the loop opens another stream.
    }
    return this.#stream === stream;
  }

  #settle(key: string, event: { exitCode: number; signal: number; atUnixMs: bigint }): void {
    const awaited = this.#awaited.get(key);
    if (awaited === undefined) return;
    this.#awaited.delete(key);
    awaited.exit.resolve({ exitCode: event.exitCode, signal: event.signal, atMs: Number(event.atUnixMs) });
  }

  #track({ pid, startTicks }: Awaited, stream: AbortController): void {
    const signal = AbortSignal.any([stream.signal, this.#closed]);
    const work = this.#trackSlots
      .run(() => this.#client.track({ pid, startTicks }, { signal }))
      .then(
        () => {},
        () => stream.abort(),
      )
      .finally(() => this.#tracking.delete(work));
    this.#tracking.add(work);
  }
}

function keyOf(pid: number, startTicks: bigint): string {
  return `${pid}:${startTicks}`;
}
