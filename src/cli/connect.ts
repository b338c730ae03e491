import type { IncomingHttpHeaders } from "node:http";
import { ENVELOPE_BYTES, envelope, FLAG_COMPRESSED, FLAG_END } from "#lib/connect-envelope";
import { type RpcCode, RpcError } from "./errors.ts";
import { type HttpClient, readBody } from "./http.ts";

/**
 * A client of the Connect protocol (https://connectrpc.com/docs/protocol), JSON codec: unary calls and server streams,
 * which is all the CLI needs. Loading the general library costs every `aenv exec` about 100 ms, several times what the
 * call itself takes; the tests hold this one against that library's server.
 */
export class ConnectClient {
  readonly #http: HttpClient;
  readonly #headers: Readonly<Record<string, string>>;

  constructor(http: HttpClient, headers: Readonly<Record<string, string>>) {
    this.#http = http;
    this.#headers = headers;
  }

  /** `timeoutMs` bounds the wait for the answer; 0 = for ever (a write into a full pipe). Throws RpcError. */
  async unary(
    path: string,
    message: unknown,
    options: { readonly timeoutMs: number; readonly signal?: AbortSignal },
  ): Promise<unknown> {
    const response = await this.#post(path, "application/json", Buffer.from(JSON.stringify(message)), {}, options);
    const body = await readBody(response, MAX_MESSAGE_BYTES).catch((error) => {
      throw broken(error);
    });
    if (response.statusCode !== 200) throw errorOfAnswer(response.statusCode ?? 0, body);
    return body.length === 0 ? {} : JSON.parse(body.toString("utf8"));
  }

  /**
   * Yields the messages of one server stream; ends when the server says so and throws RpcError for everything else, a
   * broken connection included. `idleMs`: silence longer than this counts as a broken connection (the server is asked to
   * send a sign of life three times as often). Time in which the consumer does not ask for the next message is not counted.
   */
  async *stream(
    path: string,
    message: unknown,
    options: {
      readonly signal: AbortSignal;
      readonly idleMs: number;
      readonly headers?: Readonly<Record<string, string>>;
      /** Told of the answer's headers, before its first message. */
      onHeaders?(headers: IncomingHttpHeaders): void;
    },
  ): AsyncGenerator<unknown, void> {
    const headers = {
      ...options.headers,
      "keepalive-ping-interval": String(Math.max(1, Math.floor(options.idleMs / 3000))),
    };
    const call = new AbortController();
    const signal = AbortSignal.any([options.signal, call.signal]);
    const request = { signal, timeoutMs: options.idleMs };
    const body = envelope(Buffer.from(JSON.stringify(message)));
    const response = await this.#post(path, "application/connect+json", body, headers, request);
    try {
      if (response.statusCode !== 200) {
        throw errorOfAnswer(response.statusCode ?? 0, await readBody(response, MAX_MESSAGE_BYTES));
      }
      options.onHeaders?.(response.headers);
      const chunks = (response as AsyncIterable<Buffer>)[Symbol.asyncIterator]();
      const frames = new FrameReader();
      for (;;) {
        for (let frame = frames.next(); frame !== undefined; frame = frames.next()) {
          if (frame.end) {
            const error = (JSON.parse(frame.json) as { error?: WireError }).error;
            if (error !== undefined) throw errorOfWire(error);
            return;
          }
          yield JSON.parse(frame.json);
        }
        const silence = setTimeout(() => call.abort(new Error(`silent for ${options.idleMs} ms`)), options.idleMs);
        const chunk = await chunks.next().finally(() => clearTimeout(silence));
        if (chunk.done) throw broken(new Error("the stream ended before its end was announced"));
        frames.push(chunk.value);
      }
    } catch (error) {
      if (options.signal.aborted) throw options.signal.reason;
      throw error instanceof RpcError ? error : broken(error);
    } finally {
      response.destroy();
    }
  }

  async #post(
    path: string,
    contentType: string,
    body: Uint8Array,
    headers: Readonly<Record<string, string>>,
    options: { readonly timeoutMs: number; readonly signal?: AbortSignal },
  ): Promise<Awaited<ReturnType<HttpClient["send"]>>> {
    try {
      return await this.#http.send({
        method: "POST",
        path,
        headers: { ...this.#headers, ...headers, "content-type": contentType, "connect-protocol-version": "1" },
        body,
        ...options,
      });
    } catch (error) {
      if (options.signal?.aborted) throw options.signal.reason;
      throw broken(error);
    }
  }
}

const MAX_MESSAGE_BYTES = 16 << 20;

/** Cuts a stream of bytes into enveloped messages; holds at most one message and one chunk. */
class FrameReader {
  #chunks: Buffer[] = [];
  #size = 0;

  push(chunk: Buffer): void {
    this.#chunks.push(chunk);
    this.#size += chunk.length;
  }

  next(): { readonly end: boolean; readonly json: string } | undefined {
    if (this.#size < ENVELOPE_BYTES) return undefined;
    const header = this.#peek(ENVELOPE_BYTES);
    const flags = header.readUInt8(0);
    const length = header.readUInt32BE(1);
    if (length > MAX_MESSAGE_BYTES) throw new Error(`a message of ${length} bytes is larger than agreed`);
    if (flags & FLAG_COMPRESSED) throw new Error("a message is compressed although nobody asked for it");
    if (this.#size < ENVELOPE_BYTES + length) return undefined;
    const all = this.#peek(ENVELOPE_BYTES + length);
    const json = all.toString("utf8", ENVELOPE_BYTES, ENVELOPE_BYTES + length);
    this.#chunks = [all.subarray(ENVELOPE_BYTES + length)];
    this.#size -= ENVELOPE_BYTES + length;
    return { end: (flags & FLAG_END) !== 0, json: json === "" ? "{}" : json };
  }

  /** The first chunk, made at least `bytes` long. Joins only when it must, so each byte is copied once at most. */
  #peek(bytes: number): Buffer {
    const first = this.#chunks[0] ?? Buffer.alloc(0);
    if (first.length >= bytes) return first;
    const joined = Buffer.concat(this.#chunks);
    this.#chunks = [joined];
    return joined;
  }
}

interface WireError {
  readonly code?: RpcCode;
  readonly message?: string;
}

function errorOfWire(error: WireError): RpcError {
  const code = error.code ?? "unknown";
  return new RpcError(code, error.message ?? code, { answered: true });
}

/** A non-200 answer: Connect's own error, or that of a proxy on the way or of the agent's door, which speak plain HTTP. */
function errorOfAnswer(status: number, body: Buffer): RpcError {
  const text = body.toString("utf8");
  let parsed: { code?: unknown; message?: unknown } = {};
  try {
    parsed = JSON.parse(text);
  } catch {
    // Not JSON: the status alone tells.
  }
  if (typeof parsed.code === "string") return errorOfWire(parsed as WireError);
  const message = typeof parsed.message === "string" ? parsed.message : `HTTP status ${status}`;
  return new RpcError(HTTP_CODES[status] ?? "unknown", message, { answered: false });
}

const HTTP_CODES: Readonly<Record<number, RpcCode>> = {
  400: "internal",
  401: "unauthenticated",
  403: "permission_denied",
  404: "unimplemented",
  409: "unavailable",
  410: "unavailable",
  429: "unavailable",
  502: "unavailable",
  503: "unavailable",
  504: "unavailable",
};

function broken(cause: unknown): RpcError {
  const why = cause instanceof Error ? cause.message : String(cause);
  return new RpcError("unavailable", `the connection to the sandbox broke: ${why}`, { answered: false, cause });
}
