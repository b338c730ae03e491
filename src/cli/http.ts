import type { IncomingMessage } from "node:http";
import * as http from "node:http";
import type { Duplex } from "node:stream";
import { CliError, EXIT } from "./errors.ts";

export interface HttpRequest {
  readonly method: "GET" | "POST" | "DELETE";
  /** Path with query, below the base URL. */
  readonly path: string;
  readonly headers?: Readonly<Record<string, string>>;
  /** A stream is sent as it comes, over a connection of its own; its failure is the call's. */
  readonly body?: string | Uint8Array | AsyncIterable<Uint8Array>;
  readonly signal?: AbortSignal;
  /** How long the answer's headers may take; 0 = for ever. */
  readonly timeoutMs: number;
}

const CONNECT_TIMEOUT_MS = 10_000;

/**
 * One server, over kept connections. The answer's body is left to the caller, who must read it to its end or destroy it.
 * node:http rather than fetch: a stream may be silent for hours here, and fetch cuts it after five minutes.
 */
export class HttpClient {
  readonly baseUrl: string;
  readonly #agent: http.Agent;
  readonly #request: typeof http.request;

  private constructor(baseUrl: string, module: typeof http) {
    this.baseUrl = baseUrl;
    this.#request = module.request;
    this.#agent = new module.Agent({ keepAlive: true, timeout: 0 });
  }

  /** `baseUrl` is http(s) and has no trailing slash (see `parseServerUrl`). */
  static async open(baseUrl: string): Promise<HttpClient> {
    // TLS costs start-up time, so it is loaded only where it is spoken. The two modules have the same shape.
    const module = baseUrl.startsWith("https:") ? ((await import("node:https")) as unknown as typeof http) : http;
    return new HttpClient(baseUrl, module);
  }

  /** Throws CliError (unavailable) when there is no answer, and the abort's reason when `signal` ended it. */
  async send(request: HttpRequest): Promise<IncomingMessage> {
    try {
      return await this.#sendOnce(request);
    } catch (error) {
      // The server may close a kept connection at the moment we use it again; then it has not seen the request.
      if (error instanceof StaleConnectionError) return await this.#sendOnce(request);
      throw error;
    }
  }

  /**
   * Asks for another protocol on a connection of its own. Gives that connection, which is the caller's then and may be half
   * closed, and what came behind the answer; or the answer of a server that does not want to. Throws as send does.
   */
  async upgrade(request: {
    readonly path: string;
    readonly protocol: string;
    readonly headers: Readonly<Record<string, string>>;
    readonly signal: AbortSignal;
    readonly timeoutMs: number;
  }): Promise<{ readonly socket: Duplex; readonly head: Buffer } | { readonly response: IncomingMessage }> {
    const { path, protocol, signal, timeoutMs } = request;
    const headers = { "user-agent": "aenv-cli", ...request.headers, connection: "Upgrade", upgrade: protocol };
    const options = { headers, agent: false as const, allowHalfOpen: true };
    return await new Promise((resolve, reject) => {
      if (signal.aborted) return reject(signal.reason);
      const call = this.#request(`${this.baseUrl}${path}`, options);
      const abort = (): void => void call.destroy(signal.reason);
      signal.addEventListener("abort", abort, { once: true });
      const late = timer(timeoutMs, () => call.destroy(new TimeoutError("did not answer in time")));
      const settle = (): void => {
        clearTimeout(late);
        signal.removeEventListener("abort", abort);
      };
      call.on("upgrade", (_answer, socket, head) => {
        settle();
        resolve({ socket, head });
      });
      call.on("response", (response) => {
        settle();
        response.on("error", () => {});
        resolve({ response });
      });
      call.on("error", (error) => {
        settle();
        reject(signal.aborted ? signal.reason : this.#unreachable(error));
      });
      call.end();
    });
  }

  close(): void {
    this.#agent.destroy();
  }

  #sendOnce(request: HttpRequest): Promise<IncomingMessage> {
    return new Promise((resolve, reject) => {
      const { signal, body } = request;
      if (signal?.aborted) {
        reject(signal.reason);
        return;
      }
      const headers: Record<string, string> = { "user-agent": "aenv-cli", ...request.headers };
      const stream = isStream(body) ? body : undefined;
      if (body !== undefined && !isStream(body)) headers["content-length"] = String(Buffer.byteLength(body));
      const call = this.#request(`${this.baseUrl}${request.path}`, {
        method: request.method,
        headers,
        // A kept connection may turn out to be closed, and a stream cannot be sent twice.
        agent: stream === undefined ? this.#agent : false,
      });
      const abort = (): void => void call.destroy(signal?.reason);
      signal?.addEventListener("abort", abort, { once: true });
      const answerTimer = timer(request.timeoutMs, () => call.destroy(new TimeoutError("did not answer in time")));
      const connectTimer = timer(CONNECT_TIMEOUT_MS, () => call.destroy(new TimeoutError("cannot be connected to")));
      call.on("socket", (socket) => {
        if (!socket.connecting) clearTimeout(connectTimer);
        else socket.once("connect", () => clearTimeout(connectTimer));
      });
      const settle = (): void => {
        clearTimeout(answerTimer);
        clearTimeout(connectTimer);
      };
      call.on("response", (response) => {
        settle();
        // A reader in the middle of the body sees the failure itself; this keeps it from being uncaught after that.
        response.on("error", () => {});
        response.once("close", () => signal?.removeEventListener("abort", abort));
        resolve(response);
      });
      call.on("error", (error: Error & { code?: string }) => {
        settle();
        signal?.removeEventListener("abort", abort);
        if (signal?.aborted) reject(signal.reason);
        else if (error instanceof CliError) reject(error);
        else if (call.reusedSocket && STALE_CODES.has(error.code ?? "")) reject(new StaleConnectionError());
        else reject(this.#unreachable(error));
      });
      if (stream === undefined) call.end(body as string | Uint8Array | undefined);
      else void sendStream(stream, call);
    });
  }

  #unreachable(error: Error & { code?: string }): CliError {
    const why = error instanceof TimeoutError ? error.message : describeNetworkError(error);
    return new CliError(EXIT.unavailable, `the server at ${this.baseUrl} ${why}`, {
      hint: "check that it runs, or name another one with --url, AENV_URL or `aenv auth`",
      cause: error,
    });
  }
}

function isStream(body: HttpRequest["body"]): body is AsyncIterable<Uint8Array> {
  return typeof body === "object" && Symbol.asyncIterator in body;
}

/** At the other side's pace. Once it has answered, what it does not take any more is no failure. A body that breaks off is the call's
 *  failure, and not that of the connection, which ends for it. */
async function sendStream(body: AsyncIterable<Uint8Array>, call: http.ClientRequest): Promise<void> {
  let answered = false;
  call.once("response", () => {
    answered = true;
  });
  try {
    for await (const piece of body) {
      if (call.destroyed) return;
      if (!call.write(piece)) await drained(call);
    }
    call.end();
  } catch (error) {
    if (!answered) call.destroy(error as Error);
  }
}

/** Settles when there is room again, or nobody to take anything. */
async function drained(call: http.ClientRequest): Promise<void> {
  if (call.destroyed) return;
  await new Promise<void>((resolve) => {
    const settle = (): void => {
      call.off("drain", settle);
      call.off("close", settle);
      resolve();
    };
    call.on("drain", settle);
    call.on("close", settle);
  });
}

const STALE_CODES = new Set(["ECONNRESET", "EPIPE"]);

class StaleConnectionError extends Error {}
class TimeoutError extends Error {}

function timer(ms: number, run: () => void): NodeJS.Timeout | undefined {
  return ms > 0 ? setTimeout(run, ms) : undefined;
}

function describeNetworkError(error: Error & { code?: string }): string {
  switch (error.code) {
    case "ECONNREFUSED":
      return "refuses connections";
    case "ENOTFOUND":
    case "EAI_AGAIN":
      return "has a name that cannot be resolved";
    case "EHOSTUNREACH":
    case "ENETUNREACH":
    case "ETIMEDOUT":
      return "cannot be reached";
    case "ECONNRESET":
    case "EPIPE":
      return "closed the connection";
    default:
      return `cannot be spoken to: ${error.message}`;
  }
}

/** Reads a whole body of at most `maxBytes`. */
export async function readBody(response: IncomingMessage, maxBytes: number): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of response as AsyncIterable<Buffer>) {
    size += chunk.length;
    if (size > maxBytes) throw new CliError(EXIT.failure, `the server's answer is larger than ${maxBytes} bytes`);
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

/** The bare form of a server's URL: http or https, no trailing slash, no query. */
export function parseServerUrl(text: string): string {
  const trimmed = text.trim();
  let url: URL | undefined;
  try {
    url = new URL(trimmed.includes("://") ? trimmed : `http://${trimmed}`);
  } catch {
    // Said below, together with what is a URL but not one of ours.
  }
  if (url === undefined || (url.protocol !== "http:" && url.protocol !== "https:") || url.search || url.hash) {
    throw new CliError(EXIT.usage, `'${trimmed}' is not the URL of a server`, {
      hint: "write it like http://127.0.0.1:8000 or https://sandboxes.example.org",
    });
  }
  return `${url.origin}${url.pathname.replace(/\/+$/, "")}`;
}
