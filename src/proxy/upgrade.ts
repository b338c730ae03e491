import type { IncomingMessage } from "node:http";
import { type Duplex, pipeline } from "node:stream";
import { endSoon } from "./answers.ts";
import { endToEnd, open, type Upstream } from "./forward.ts";

/** What a client may send before its upgrade is answered. More waits on its side of the connection. */
const MAX_EARLY_BYTES = 64 * 1024;
/** An upgraded request is sent without a body: what comes after its head belongs to the connection. */
const OF_A_BODY = new Set(["content-length"]);

/**
 * Takes an upgraded connection (WebSocket) through. The service may take its time to answer, as long as the client is there.
 * `onRefused` answers when there is nobody.
 */
export function forwardUpgrade(
  incoming: IncomingMessage,
  socket: Duplex,
  head: Buffer,
  upstream: Upstream,
  onRefused: (socket: Duplex) => void,
): void {
  if (socket.destroyed) return;
  const upgrade = ["Connection", "Upgrade", "Upgrade", incoming.headers.upgrade ?? ""];
  const outgoing = open(incoming, { ...upstream, without: OF_A_BODY }, upgrade);
  const client = new WaitingClient(socket, head, () => outgoing.destroy());
  outgoing.once("error", () => {
    client.ignore();
    if (!socket.destroyed) onRefused(socket);
  });
  outgoing.once("response", (answer) => {
    // Not upgraded: an ordinary answer, after which the connection ends.
    client.ignore();
    socket.write(rawHead(answer, ["Connection", "close"]));
    pipeline(answer, socket, () => endSoon(socket));
  });
  outgoing.once("upgrade", (answer, upstreamSocket, upstreamHead) => {
    upstream.onUpgraded?.(upstreamSocket);
    const early = client.take();
    socket.write(rawHead(answer, ["Connection", "Upgrade", "Upgrade", answer.headers.upgrade ?? ""]));
    if (upstreamHead.length > 0) socket.write(upstreamHead);
    if (early.length > 0) upstreamSocket.write(early);
    pipeline(socket, upstreamSocket, () => {});
    pipeline(upstreamSocket, socket, () => {});
  });
  outgoing.end();
}

/** A client that waits for the answer to its upgrade. Only by reading is it seen that it has left. */
class WaitingClient {
  readonly #socket: Duplex;
  readonly #onLeft: () => void;
  #early: Buffer[];
  #earlyBytes: number;

  constructor(socket: Duplex, head: Buffer, onLeft: () => void) {
    this.#socket = socket;
    this.#onLeft = onLeft;
    this.#early = [head];
    this.#earlyBytes = head.length;
    socket.on("data", this.#keep).once("end", this.#leave).once("close", this.#leave);
  }

  /** What it has sent; the rest is the caller's to read. */
  take(): Buffer {
    this.#socket.pause();
    this.#socket.off("data", this.#keep).off("end", this.#leave).off("close", this.#leave);
    return Buffer.concat(this.#early);
  }

  /** What it sends is of no use any more; that it leaves still is. */
  ignore(): void {
    this.#socket.off("data", this.#keep);
    this.#early = [];
    this.#socket.resume();
  }

  readonly #keep = (chunk: Buffer): void => {
    this.#early.push(chunk);
    this.#earlyBytes += chunk.length;
    if (this.#earlyBytes >= MAX_EARLY_BYTES) this.#socket.pause();
  };

  readonly #leave = (): void => {
    this.#socket.destroy();
    this.#onLeft();
  };
}

function rawHead(answer: IncomingMessage, extra: readonly string[]): string {
  const pairs = [...endToEnd(answer.rawHeaders, new Set()), ...extra];
  let text = `HTTP/1.1 ${answer.statusCode} ${answer.statusMessage}\r\n`;
  for (let at = 0; at < pairs.length; at += 2) text += `${pairs[at]}: ${pairs[at + 1]}\r\n`;
  return `${text}\r\n`;
}
