import { once } from "node:events";
import { type AddressInfo, createServer, type Server, Socket } from "node:net";
import type { Duplex } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";
import type { ApiClient, SandboxHandle } from "./api.ts";
import type { Context } from "./context.ts";
import { ApiError, CliError, EXIT } from "./errors.ts";
import { onEnding } from "./io.ts";
import { openTunnel, TunnelError } from "./tunnel.ts";

const LOCAL_HOST = "127.0.0.1";
/** Connections at once over each port. */
const MAX_CONNECTIONS = 1024;
const LOOK_EVERY_MS = 5000;
/** The same remark is not made again sooner. */
const REPEAT_MS = 5000;

export interface Forward {
  /** 0: any that is free. */
  readonly localPort: number;
  readonly remotePort: number;
}

/** Local ports whose connections are carried into a sandbox. */
export class Forwarder implements AsyncDisposable {
  readonly #context: Context;
  readonly #api: ApiClient;
  readonly #sandbox: SandboxHandle;
  readonly #stop = new AbortController();
  readonly #forget: () => void;
  readonly #servers: Server[] = [];
  readonly #tasks = new Set<Promise<void>>();
  #lastNote = { text: "", atMs: 0 };

  constructor(context: Context, api: ApiClient, sandbox: SandboxHandle) {
    this.#context = context;
    this.#api = api;
    this.#sandbox = sandbox;
    this.#forget = onEnding(context.io, () => this.#stop.abort(new Interrupted()));
  }

  /** All of them or none. Throws CliError for a port that cannot be had. */
  async listen(forwards: readonly Forward[]): Promise<readonly Forward[]> {
    const open: Forward[] = [];
    for (const { localPort, remotePort } of forwards) {
      // Half-closed connections are carried on, and nothing is read before there is somebody to read it.
      const server = createServer({ allowHalfOpen: true, pauseOnConnect: true, noDelay: true }, (socket) =>
        this.#accept(socket, remotePort),
      );
      server.maxConnections = MAX_CONNECTIONS;
      try {
        server.listen(localPort, LOCAL_HOST);
        await once(server, "listening");
      } catch (error) {
        throw cannotListen(localPort, error as NodeJS.ErrnoException);
      }
      this.#servers.push(server);
      open.push({ localPort: (server.address() as AddressInfo).port, remotePort });
    }
    return open;
  }

  /** Returns 130 when interrupted. Throws CliError (not found) when the sandbox has ended. */
  async untilEnd(): Promise<number> {
    try {
      for (;;) {
        await sleep(LOOK_EVERY_MS, undefined, { signal: this.#stop.signal }).catch(() => {});
        this.#stop.signal.throwIfAborted();
        await this.#look();
      }
    } catch (error) {
      if (error instanceof Interrupted) return EXIT.interrupted;
      throw error;
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#forget();
    this.#stop.abort(new Interrupted());
    const closed = this.#servers.map((server) => new Promise((resolve) => server.close(resolve)));
    await Promise.all([...closed, ...this.#tasks]);
  }

  #accept(local: Socket, port: number): void {
    const task = this.#carry(local, port).finally(() => this.#tasks.delete(task));
    this.#tasks.add(task);
  }

  /** Never throws. */
  async #carry(local: Socket, port: number): Promise<void> {
    local.on("error", () => {});
    const gone = new AbortController();
    const leave = (): void => gone.abort(new Error("the client has left"));
    local.once("close", leave);
    const signal = AbortSignal.any([this.#stop.signal, gone.signal]);
    try {
      const { socket, head } = await openTunnel(this.#api.http, this.#sandbox, port, signal);
      local.off("close", leave);
      if (head.length > 0) local.write(head);
      await join(local, socket, this.#stop.signal);
    } catch (error) {
      local.resetAndDestroy();
      if (!signal.aborted) await this.#refused(error);
    }
  }

  async #refused(error: unknown): Promise<void> {
    if (!(error instanceof CliError)) return this.#stop.abort(error);
    if (error instanceof TunnelError && error.reason === "unable") return this.#stop.abort(error);
    await this.#note(error.message);
    if (error instanceof TunnelError && error.reason === "away") {
      await this.#look().catch((reason) => this.#stop.abort(reason));
    }
  }

  /** Throws when the sandbox has ended; says that it is paused. */
  async #look(): Promise<void> {
    const id = this.#sandbox.sandboxID;
    try {
      const { state } = await this.#api.getSandbox(id, this.#stop.signal);
      if (state === "paused") await this.#note(`${id} is paused; \`aenv resume ${id}\` lets connections through again`);
    } catch (error) {
      this.#stop.signal.throwIfAborted();
      if (error instanceof ApiError && error.status === 404) {
        throw new CliError(EXIT.notFound, `${id} is gone: deleted, or its time was over`);
      }
      // The server is away; it may come back.
    }
  }

  async #note(text: string): Promise<void> {
    const nowMs = Date.now();
    if (text === this.#lastNote.text && nowMs - this.#lastNote.atMs < REPEAT_MS) return;
    this.#lastNote = { text, atMs: nowMs };
    await this.#context.out.note(`aenv: ${text}`);
  }
}

class Interrupted extends Error {}

/** Carries bytes, ends and breaks of each side to the other, until both have ended. */
async function join(local: Socket, remote: Duplex, signal: AbortSignal): Promise<void> {
  const breaks = (): void => {
    // A clean end would make a broken answer look whole. (TLS has no reset: there an end without its farewell is none.)
    local.resetAndDestroy();
    if (remote instanceof Socket && !("encrypted" in remote)) remote.resetAndDestroy();
    else remote.destroy();
  };
  signal.addEventListener("abort", breaks, { once: true });
  const ended = [local, remote].map((side) => {
    side.on("error", breaks);
    return new Promise<void>((resolve) => side.once("close", resolve));
  });
  for (const [from, to] of [
    [local, remote],
    [remote, local],
  ] as const) {
    from.once("close", () => {
      if (!from.readableEnded) breaks();
    });
    from.pipe(to);
  }
  if (signal.aborted) breaks();
  await Promise.all(ended);
  signal.removeEventListener("abort", breaks);
}

function cannotListen(port: number, error: NodeJS.ErrnoException): CliError {
  if (error.code === "EADDRINUSE") {
    return new CliError(EXIT.conflict, `port ${port} of this machine is taken`, {
      hint: "choose another one: LOCAL:REMOTE, or :REMOTE for any free one",
    });
  }
  const why = error.code === "EACCES" ? "only root may listen there" : error.message;
  return new CliError(EXIT.failure, `cannot listen on port ${port} of this machine: ${why}`, {
    hint: "choose another one: LOCAL:REMOTE, or :REMOTE for any free one",
  });
}
