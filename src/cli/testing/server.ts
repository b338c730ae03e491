import { once } from "node:events";
import { createServer, type IncomingMessage, request as requestOf, type ServerResponse } from "node:http";
import { type AddressInfo, connect, type Socket } from "node:net";
import { pipeline } from "node:stream/promises";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { AgentDouble } from "./agent.ts";

export const KEY = "e2b_0123456789";

export interface SandboxRecord {
  sandboxID: string;
  templateID: string;
  clientID: string;
  envdVersion: string;
  state: "running" | "paused";
  cpuCount: number;
  memoryMB: number;
  diskSizeMB: number;
  startedAt: string;
  endAt: string;
  removeAt?: string;
  envdAccessToken: string;
  metadata: Record<string, string>;
  domain?: string;
  network?: { allowPublicTraffic: boolean };
}

export interface Seen {
  readonly method: string;
  readonly path: string;
  readonly query: URLSearchParams;
  readonly body: Record<string, unknown>;
  readonly key: string | undefined;
}

type Answer = { status: number; body?: unknown; headers?: Record<string, string> };

/**
 * A server that speaks the API's shapes from memory, with an agent behind it: the double, or a real one that listens at
 * `agentUrl`. Scripted where a test needs a failure.
 */
export class ServerDouble implements AsyncDisposable {
  readonly agent = new AgentDouble();
  readonly sandboxes = new Map<string, SandboxRecord>();
  readonly seen: Seen[] = [];
  /** Of every sandbox, also of those that have ended. */
  readonly logs = new Map<string, { timestamp: string; level: string; message: string; fields: object }[]>();
  readonly metrics = new Map<string, { timestamp: string; timestampUnix: number; [name: string]: unknown }[]>();
  /** Answers given before anything else, by `METHOD /path`. */
  readonly scripted = new Map<string, (seen: Seen) => Answer | undefined | Promise<Answer | undefined>>();
  readonly #server = createServer((request, response) => void this.#handle(request, response));
  readonly #connect = connectNodeAdapter({ routes: this.agent.routes });
  readonly #agentUrl: string | undefined;
  #nextId = 1;

  private constructor(agentUrl: string | undefined) {
    this.#agentUrl = agentUrl;
  }

  static async start(options: { readonly agentUrl?: string } = {}): Promise<ServerDouble> {
    const double = new ServerDouble(options.agentUrl);
    double.#server.on("upgrade", (request, socket, head) => double.#upgrade(request, socket as Socket, head));
    double.#server.listen(0, "127.0.0.1");
    await once(double.#server, "listening");
    return double;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  add(state: "running" | "paused" = "running"): SandboxRecord {
    const id = `i${String(this.#nextId++).padStart(19, "0")}`;
    const record: SandboxRecord = {
      sandboxID: id,
      templateID: "base",
      clientID: "",
      envdVersion: "0.5.2",
      state,
      cpuCount: 2,
      memoryMB: 512,
      diskSizeMB: 1024,
      startedAt: new Date().toISOString(),
      endAt: new Date(Date.now() + 300_000).toISOString(),
      envdAccessToken: `token-${id}`,
      metadata: {},
    };
    this.sandboxes.set(id, record);
    return record;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.agent.close();
    this.#server.closeAllConnections();
    this.#server.close();
    await once(this.#server, "close");
  }

  async #handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const url = new URL(request.url ?? "/", "http://host");
    if (request.headers["e2b-sandbox-id"] !== undefined) {
      const sandbox = this.sandboxes.get(String(request.headers["e2b-sandbox-id"]));
      const allowed = request.headers["x-access-token"] === sandbox?.envdAccessToken;
      const open = sandbox?.state === "running" && allowed;
      if (open && this.#agentUrl !== undefined) forward(request, response, this.#agentUrl);
      else if (open) this.#connect(request, response);
      else send(response, { status: 502, body: { code: 502, message: "The sandbox was not found" } });
      return;
    }
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk);
    const text = Buffer.concat(chunks).toString("utf8");
    const seen: Seen = {
      method: request.method ?? "",
      path: url.pathname,
      query: url.searchParams,
      body: text === "" ? {} : JSON.parse(text),
      key: request.headers["x-api-key"] as string | undefined,
    };
    this.seen.push(seen);
    const scripted = await this.scripted.get(`${seen.method} ${seen.path}`)?.(seen);
    send(response, scripted ?? this.#answer(seen));
  }

  /** As the edge: the connection becomes one to the agent. */
  #upgrade(request: IncomingMessage, client: Socket, head: Buffer): void {
    const sandbox = this.sandboxes.get(String(request.headers["e2b-sandbox-id"]));
    if (sandbox?.state !== "running" || this.#agentUrl === undefined) {
      const text = JSON.stringify({ code: 502, message: "The sandbox was not found" });
      client.end(`HTTP/1.1 502 Bad Gateway\r\nConnection: close\r\nContent-Length: ${text.length}\r\n\r\n${text}`);
      return;
    }
    const { hostname, port } = new URL(this.#agentUrl);
    const agent = connect({ host: hostname, port: Number(port), allowHalfOpen: true });
    const lines = [`${request.method} ${request.url} HTTP/1.1`];
    for (let at = 0; at < request.rawHeaders.length; at += 2) {
      lines.push(`${request.rawHeaders[at]}: ${request.rawHeaders[at + 1]}`);
    }
    agent.write(`${lines.join("\r\n")}\r\n\r\n`);
    agent.write(head);
    agent.on("error", () => client.resetAndDestroy());
    client.on("error", () => agent.resetAndDestroy());
    client.pipe(agent).pipe(client);
  }

  #answer(seen: Seen): Answer {
    if (seen.key !== KEY) return { status: 401, body: { code: 401, message: "wrong key" } };
    const call = `${seen.method} ${seen.path}`;
    if (call === "GET /v2/sandboxes") return { status: 200, body: [...this.sandboxes.values()].reverse() };
    if (call === "POST /v2/sandboxes") return { status: 201, body: this.add() };
    const told = /^(?:\/v2)?\/sandboxes\/(\w+)\/(logs|metrics)$/.exec(seen.path);
    if (told?.[1] !== undefined && this[told[2] as "logs"].has(told[1])) return this.#tell(told[1], seen);
    const [, root, id = "", action = ""] = seen.path.split("/");
    const sandbox = root === "sandboxes" ? this.sandboxes.get(id) : undefined;
    if (sandbox === undefined) return { status: 404, body: { code: 404, message: `"${id}" doesn't exist` } };
    return this.#act(sandbox, `${seen.method} ${action}`, seen);
  }

  #tell(id: string, { path, query }: Seen): Answer {
    const number = (name: string, otherwise: number): number => Number(query.get(name) ?? otherwise);
    if (path.endsWith("/metrics")) {
      const found = this.metrics.get(id)?.filter(({ timestampUnix }) => timestampUnix >= number("start", 0));
      return { status: 200, body: found };
    }
    const from = this.logs.get(id)?.filter(({ timestamp }) => Date.parse(timestamp) >= number("cursor", 0)) ?? [];
    const ordered = query.get("direction") === "forward" ? from : from.toReversed();
    return { status: 200, body: { logs: ordered.slice(0, number("limit", 1000)) } };
  }

  #act(sandbox: SandboxRecord, action: string, seen: Seen): Answer {
    switch (action) {
      case "GET ":
        return { status: 200, body: sandbox };
      case "DELETE ":
        this.sandboxes.delete(sandbox.sandboxID);
        return { status: 204 };
      case "POST pause": {
        if (sandbox.state === "paused") return { status: 409, body: { code: 409, message: "already paused" } };
        sandbox.state = "paused";
        return { status: 204 };
      }
      case "POST connect": {
        const resumed = sandbox.state === "paused";
        sandbox.state = "running";
        return { status: resumed ? 201 : 200, body: sandbox };
      }
      case "POST timeout":
      case "POST refreshes":
        return { status: 204 };
      case "POST fork":
        return { status: 201, body: Array.from({ length: Number(seen.body.count) }, () => ({ sandbox: this.add() })) };
      default:
        return { status: 404, body: { code: 404, message: `no route ${seen.method} ${seen.path}` } };
    }
  }
}

function send(response: ServerResponse, { status, body, headers }: Answer): void {
  const text = body === undefined ? "" : JSON.stringify(body);
  response.writeHead(status, { "content-type": "application/json", ...headers });
  response.end(text);
}

function forward(request: IncomingMessage, response: ServerResponse, baseUrl: string): void {
  const { method, headers } = request;
  const onward = requestOf(`${baseUrl}${request.url}`, { method, headers }, (answer) => {
    response.writeHead(answer.statusCode ?? 502, answer.headers);
    pipeline(answer, response).catch(() => {});
  });
  // Once there is an answer, what it leaves unread is no failure.
  const fail = (): void => void (response.headersSent || response.destroy());
  request.pipe(onward);
  onward.on("error", fail);
  response.on("close", () => onward.destroy());
}
