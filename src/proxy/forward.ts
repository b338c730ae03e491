import {
  type Agent,
  type ClientRequest,
  type IncomingMessage,
  type RequestOptions,
  request,
  type ServerResponse,
} from "node:http";
import type { Duplex } from "node:stream";
import { pipeline } from "node:stream";

/** Headers that speak of one connection, not of the message. */
const HOP_BY_HOP = new Set([
  "connection",
  "keep-alive",
  "proxy-connection",
  "transfer-encoding",
  "te",
  "trailer",
  "upgrade",
  "http2-settings",
]);

const BEYOND_ASCII = /[^\x20-\x7e\t]/;
/** What a service may put into its status line and nobody may send on. */
const UNSPEAKABLE = /[^\x20-\x7e\t\x80-\xff]/;
/** Waits between attempts to connect: a service inside may just be opening its port. */
const DIAL_RETRY_MS = [50, 100, 200, 300];

export interface Upstream {
  /** Where to connect and with which pool. */
  readonly options: Pick<RequestOptions, "host" | "port" | "socketPath"> & { readonly agent: Agent };
  readonly path: string;
  /** False once nobody is there any more: it is not dialled again. */
  readonly isCurrent?: () => boolean;
  /** Told of a connection that was upgraded, which the agent gives up. */
  readonly onUpgraded?: (socket: Duplex) => void;
  readonly extraHeaders?: readonly string[];
  /** Headers of the client that are not passed on. */
  readonly without?: ReadonlySet<string>;
}

/** Nothing was sent yet: the port is closed. */
export class DialError extends Error {}
/** The upstream went away before it answered. */
export class LostError extends Error {}

/**
 * Sends a request on and its answer back, bytes as they come, no timeout. Resolves when the answer's head has been sent;
 * a body cut short ends the client's connection, so that it is not taken for whole.
 */
export async function forward(incoming: IncomingMessage, response: ServerResponse, upstream: Upstream): Promise<void> {
  for (let attempt = 0; ; attempt += 1) {
    try {
      const answer = await exchange(incoming, response, upstream);
      const headers = endToEnd(answer.rawHeaders, new Set());
      sendHead(answer, response, headers);
      pipeline(answer, response, (error) => {
        if (error) response.destroy();
      });
      // Flushed alone a head would be written as UTF-8: bytes beyond ASCII go with the first of the body.
      if (headers.every((text) => !BEYOND_ASCII.test(text))) setImmediate(() => flushHead(answer, response));
      return;
    } catch (error) {
      const waitMs = DIAL_RETRY_MS[attempt];
      if (!(error instanceof DialError) || waitMs === undefined || incoming.destroyed) throw error;
      if (upstream.isCurrent?.() === false) throw error;
      await new Promise((resolve) => setTimeout(resolve, waitMs));
    }
  }
}

/** Services say what they like: what is no HTTP counts as lost, and nothing of it is kept. */
function sendHead(answer: IncomingMessage, response: ServerResponse, headers: string[]): void {
  const reason = answer.statusMessage ?? "";
  try {
    response.writeHead(answer.statusCode ?? 502, UNSPEAKABLE.test(reason) ? "" : reason, headers);
  } catch (cause) {
    answer.destroy();
    throw new LostError("the answer cannot be passed on", { cause });
  }
}

/** A stream's first bytes may be a long time off, and its head must not wait for them. Where they came along with it, they
 *  have gone on together by now: one packet, and one wake-up of the client, less. */
function flushHead(answer: IncomingMessage, response: ServerResponse): void {
  if (!answer.readableDidRead && !response.writableEnded && !response.destroyed) response.flushHeaders();
}

/** One attempt: the body starts to flow only over an established connection, so a failed dial may be repeated. */
function exchange(incoming: IncomingMessage, response: ServerResponse, upstream: Upstream): Promise<IncomingMessage> {
  return new Promise((resolve, reject) => {
    const outgoing = open(incoming, upstream, framing(incoming));
    let isConnected = false;
    const start = (): void => {
      isConnected = true;
      // Errors of either side arrive as theirs; the client's body stays readable when the upstream goes away.
      if (hasBody(incoming)) incoming.pipe(outgoing);
      else outgoing.end();
    };
    whenConnected(outgoing, start);
    const onClose = (): void => {
      if (!response.writableFinished) outgoing.destroy();
    };
    response.once("close", onClose);
    // A service may have answered before the whole body came; a client that leaves then is seen on its connection only.
    const onLeft = (): void => void outgoing.destroy();
    incoming.socket.once("close", onLeft);
    outgoing.once("close", () => incoming.socket.off("close", onLeft));
    outgoing.once("response", resolve);
    outgoing.once("error", (error) => {
      response.off("close", onClose);
      incoming.unpipe(outgoing);
      reject(
        isConnected
          ? new LostError("upstream went away", { cause: error })
          : new DialError("cannot connect", { cause: error }),
      );
    });
  });
}

/** A request to the upstream with the head of the client's; its body is the caller's. */
export function open(incoming: IncomingMessage, upstream: Upstream, extra: readonly string[]): ClientRequest {
  const headers = endToEnd(incoming.rawHeaders, upstream.without ?? new Set());
  headers.push(...extra, ...(upstream.extraHeaders ?? []));
  return request({
    ...upstream.options,
    method: incoming.method ?? "GET",
    path: upstream.path,
    headers,
    setHost: false,
  });
}

function whenConnected(outgoing: ClientRequest, start: () => void): void {
  outgoing.once("socket", (socket) => {
    if (socket.connecting) socket.once("connect", start);
    else start();
  });
}

/** Read off the head: what a body has once begun to give is gone, so such a request is sent once only. */
export function hasBody(incoming: IncomingMessage): boolean {
  const length = incoming.headers["content-length"];
  return incoming.headers["transfer-encoding"] !== undefined || (length !== undefined && length !== "0");
}

/** A chunked request stays chunked: its length is not known. */
function framing(incoming: IncomingMessage): string[] {
  return incoming.headers["transfer-encoding"] === undefined ? [] : ["Transfer-Encoding", "chunked"];
}

/** Raw name-value pairs without those of the connection, also without the ones `Connection` itself names. */
export function endToEnd(raw: readonly string[], without: ReadonlySet<string>): string[] {
  const named = new Set<string>();
  for (let at = 0; at < raw.length; at += 2) {
    if (raw[at]?.toLowerCase() !== "connection") continue;
    for (const name of (raw[at + 1] ?? "").split(",")) named.add(name.trim().toLowerCase());
  }
  const kept: string[] = [];
  for (let at = 0; at < raw.length; at += 2) {
    const name = raw[at] ?? "";
    const lower = name.toLowerCase();
    if (!HOP_BY_HOP.has(lower) && !named.has(lower) && !without.has(lower)) kept.push(name, raw[at + 1] ?? "");
  }
  return kept;
}
