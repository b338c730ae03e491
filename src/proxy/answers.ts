import type { IncomingMessage, ServerResponse } from "node:http";
import type { Duplex } from "node:stream";
import type { SandboxId } from "#domain";

/** For a client to take its answer, when nothing more is wanted of it. */
const LEAVE_MS = 5_000;

/** What the edge answers by itself. Texts and keys are wire facts: SDKs match `was not found` and `port is not open`. */
export interface EdgeAnswer {
  readonly status: number;
  readonly body: Readonly<Record<string, unknown>>;
  readonly title: string;
}

export function notFound(sandboxId: SandboxId): EdgeAnswer {
  return answer(502, "Sandbox Not Found", { sandboxId, message: "The sandbox was not found" });
}

export function portClosed(sandboxId: SandboxId, port: number): EdgeAnswer {
  const message = "The sandbox is running but port is not open";
  return answer(502, `There is no service running on port ${port}`, { sandboxId, message, port });
}

/** AgentENV's answer on `/proxy/…`. */
export function paused(sandboxId: SandboxId): EdgeAnswer {
  return answer(410, "Sandbox Paused", { sandboxId, message: `sandbox ${sandboxId} is paused` });
}

export function wakeRefused(sandboxId: SandboxId): EdgeAnswer {
  return answer(403, "Access Denied", {
    sandboxId,
    message: "The sandbox is paused, and waking it needs its access token (header X-Access-Token)",
  });
}

/** It exists and its state is untouched: trying again may help. */
export function notWoken(sandboxId: SandboxId): EdgeAnswer {
  const message = "The sandbox is paused and could not be resumed; try again in a moment";
  return answer(503, "Sandbox Not Resumed", { sandboxId, message });
}

export function reserved(path: string): EdgeAnswer {
  return answer(404, "Not Found", { path, message: `${path} is reserved for the E2B control plane` });
}

export function invalid(message: string): EdgeAnswer {
  return answer(400, "Bad Request", { message });
}

export function controlDown(): EdgeAnswer {
  return answer(503, "Unavailable", { message: "The server is being restarted; try again in a moment" });
}

/** No status that clients send again by themselves: what was asked may have been done. */
export function controlLost(): EdgeAnswer {
  return answer(500, "Interrupted", {
    message: "The server was restarted in the middle of this request; see what it has done before you repeat it",
  });
}

function answer(status: number, title: string, fields: Record<string, unknown>): EdgeAnswer {
  return { status, title, body: { ...fields, code: status } };
}

/** HTML is for people only: a browser's own navigation, not a script's fetch. */
export function wantsHtml(header: (name: string) => string | undefined): boolean {
  const isBrowser = (header("user-agent") ?? "").startsWith("Mozilla/");
  const mode = header("sec-fetch-mode");
  return isBrowser && (mode === undefined || mode === "navigate") && !(header("accept") ?? "").includes("json");
}

export function render(given: EdgeAnswer, html: boolean): { readonly type: string; readonly text: string } {
  if (!html) return { type: "application/json; charset=utf-8", text: JSON.stringify(given.body) };
  const message = escapeHtml(String(given.body.message));
  const id =
    given.body.sandboxId === undefined ? "" : `<p><code>${escapeHtml(String(given.body.sandboxId))}</code></p>`;
  const head = `<head><meta charset="utf-8"><title>${escapeHtml(given.title)}</title></head>`;
  return {
    type: "text/html; charset=utf-8",
    text: `<html>${head}<body><h1>${escapeHtml(given.title)}</h1><p>${message}</p>${id}</body></html>`,
  };
}

export function send(response: ServerResponse, given: EdgeAnswer, html: boolean): void {
  if (response.headersSent) {
    response.destroy();
    return;
  }
  const { type, text } = render(given, html);
  response.writeHead(given.status, { "content-type": type, "content-length": Buffer.byteLength(text) });
  response.end(text);
  if (!response.req.complete) letFinish(response.req);
}

/** Many clients look for the answer only after their body has been taken. That is read, but not for ever. */
function letFinish(request: IncomingMessage): void {
  request.once("end", destroyLater(request.socket));
  request.resume();
}

/** Answers on a connection that is no HTTP server's any more. */
export function refuse(socket: Duplex, given: EdgeAnswer): void {
  const { type, text } = render(given, false);
  const length = Buffer.byteLength(text);
  socket.end(
    `HTTP/1.1 ${given.status} ${given.title}\r\ncontent-type: ${type}\r\ncontent-length: ${length}\r\nconnection: close\r\n\r\n${text}`,
  );
  endSoon(socket);
}

/** After its last answer a client ends its side as well. One that does not is not waited for, nor listened to. */
export function endSoon(socket: Duplex): void {
  if (socket.destroyed) return;
  destroyLater(socket);
  socket.once("end", () => socket.destroy()).resume();
}

/** Returns how to let it live. */
function destroyLater(socket: Duplex): () => void {
  const timer = setTimeout(() => socket.destroy(), LEAVE_MS);
  const stop = (): void => {
    clearTimeout(timer);
    socket.off("close", stop);
  };
  socket.once("close", stop);
  return stop;
}

function escapeHtml(text: string): string {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");
}
