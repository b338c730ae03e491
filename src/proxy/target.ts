import type { SandboxId } from "#domain";

/** The agent's port, for clients that name none. */
export const AGENT_PORT = 49983;

/** Where a request wants to go. */
export type Target =
  | { readonly kind: "api" }
  | {
      readonly kind: "sandbox";
      readonly sandboxId: SandboxId;
      readonly port: number;
      /** The path to send on. */
      readonly path: string;
      /** Asked through `/proxy/…`, whose callers expect AgentENV's answers for a paused sandbox. */
      readonly viaProxyPath: boolean;
    }
  | { readonly kind: "invalid"; readonly message: string };

export interface RequestHead {
  readonly url: string;
  readonly host: string | undefined;
  readonly header: (name: string) => string | undefined;
}

/** `PORT-ID` or `PORT-ID-CLIENT`, the first label of a sandbox's host name. */
const HOST_LABEL = /^(\d{1,5})-([a-z0-9]+)(?:-[a-z0-9]+)?$/;
/** A request may name its target as to a proxy, `GET http://host/path`; it means the path. */
const ABSOLUTE = /^https?:\/\/[^/?#]*/i;

/**
 * Host name first, then headers (E2B's SDKs always send them, and with `E2B_SANDBOX_URL` nothing else tells), then
 * `/proxy/…` with AgentENV's headers. Everything else is the API's.
 */
export function targetOf(head: RequestHead): Target {
  const url = head.url.replace(ABSOLUTE, "");
  const label = HOST_LABEL.exec((head.host ?? "").split(".", 1)[0] ?? "");
  if (label?.[1] !== undefined && label[2] !== undefined)
    return sandbox(label[2], label[1], startingWithSlash(url), false);

  const viaProxyPath = url === "/proxy" || url.startsWith("/proxy/") || url.startsWith("/proxy?");
  const id = head.header("e2b-sandbox-id") ?? (viaProxyPath ? head.header("x-agentenv-sandbox-id") : undefined);
  const port = head.header("e2b-sandbox-port") ?? (viaProxyPath ? head.header("x-agentenv-target-port") : undefined);
  if (id === undefined) {
    if (!viaProxyPath) return { kind: "api" };
    return { kind: "invalid", message: "/proxy needs the headers x-agentenv-sandbox-id and x-agentenv-target-port" };
  }
  const rest = viaProxyPath ? url.slice("/proxy".length) : url;
  return sandbox(id, port ?? String(AGENT_PORT), startingWithSlash(rest), viaProxyPath);
}

function startingWithSlash(path: string): string {
  return path.startsWith("/") ? path : `/${path}`;
}

function sandbox(idText: string, portText: string, path: string, viaProxyPath: boolean): Target {
  // The old form carried a client id after a dash.
  const sandboxId = idText.split("-", 1)[0] ?? "";
  const port = Number(portText);
  if (!/^\d+$/.test(portText) || port < 1 || port > 65_535) {
    return { kind: "invalid", message: `the sandbox port must be a number from 1 to 65535, not "${portText}"` };
  }
  return { kind: "sandbox", sandboxId, port, path, viaProxyPath };
}

/** Agent routes that only the node may use. */
const RESERVED = new Set(["/init", "/memory", "/freeze", "/unfreeze", "/collapse", "/fsfreeze", "/fsthaw", "/upgrade"]);

export function isReserved(port: number, path: string): boolean {
  return port === AGENT_PORT && RESERVED.has(decodedPath(path));
}

function decodedPath(path: string): string {
  const bare = path.split("?", 1)[0] ?? "";
  try {
    // As a server would read it: `//init`, `/%69nit` and `/init/` name the same route.
    return `/${decodeURIComponent(bare)
      .split("/")
      .filter((part) => part !== "" && part !== ".")
      .join("/")}`;
  } catch {
    return bare;
  }
}
