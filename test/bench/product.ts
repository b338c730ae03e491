import { readFileSync } from "node:fs";
import { Agent, request } from "node:http";
import { join } from "node:path";
import { AGENT_PORT } from "#guest";
import type { ServerNetwork } from "#network";
import { dataPaths } from "../../src/config.ts";
import { slotNetwork, slotOfName } from "../../src/network/addresses.ts";
import type { TestServer } from "../e2e/start.ts";

/** A sandbox of the product under measure. */
export interface Sandbox {
  readonly id: string;
  /** What its agent asks for. */
  readonly accessToken: string;
}

interface Answer {
  readonly status: number;
  readonly text: string;
}

/** The product as a client sees it: plain HTTP on kept connections, so that a client's own cost is not what is measured. */
export class Product {
  readonly server: TestServer;
  readonly #network: ServerNetwork;
  readonly #agent = new Agent({ keepAlive: true });

  constructor(server: TestServer, network: ServerNetwork) {
    this.server = server;
    this.#network = network;
  }

  async create(): Promise<Sandbox> {
    return sandboxOf(await this.#api("POST", "/sandboxes", 201, { templateID: "base", timeout: 600, secure: true }));
  }

  /** Which of the host's servers it is. */
  get index(): number {
    return this.#network.index;
  }

  /** Points the stock SDK at the server. */
  get sdkOptions(): { apiUrl: string; sandboxUrl: string; apiKey: string } {
    const { url, apiKey } = this.server;
    return { apiUrl: url, sandboxUrl: url, apiKey };
  }

  /** A sandbox somebody else has made. */
  async find(id: string): Promise<Sandbox> {
    return sandboxOf(await this.#api("GET", `/sandboxes/${id}`, 200));
  }

  /** How many sandboxes there are, running or paused. */
  async count(): Promise<number> {
    return (JSON.parse(await this.#api("GET", "/v2/sandboxes?state=running,paused", 200)) as unknown[]).length;
  }

  /** One answer of the sandbox's agent through the edge. */
  async agentAnswer({ id }: Sandbox): Promise<void> {
    const { status, text } = await this.#send("GET", "/health", this.edgeHeaders(id));
    if (status !== 204) throw new Error(`the agent of ${id} answered ${status}: ${text}`);
  }

  /** What a service in the sandbox says, through the edge. */
  async serviceAnswer({ id }: Sandbox, port: number, path: string): Promise<string> {
    const { status, text } = await this.#send("GET", path, this.edgeHeaders(id, port));
    if (status !== 200) throw new Error(`port ${port} of ${id} answered ${status}: ${text}`);
    return text;
  }

  async pause({ id }: Sandbox): Promise<void> {
    await this.#api("POST", `/sandboxes/${id}/pause`, 204);
  }

  /** Resumes it, when it is paused. */
  async connect({ id }: Sandbox): Promise<void> {
    await this.#api("POST", `/sandboxes/${id}/connect`, [200, 201], { timeout: 600 });
  }

  /** Copies of a running sandbox. Throws when one of them did not come to be. */
  async fork({ id }: Sandbox, count: number): Promise<Sandbox[]> {
    const results = JSON.parse(await this.#api("POST", `/sandboxes/${id}/fork`, 201, { count, timeout: 600 })) as {
      sandbox?: unknown;
    }[];
    return results.map((result) => sandboxOf(JSON.stringify(result.sandbox ?? {})));
  }

  /** Whether this server has such a route: `/sandboxes/{sandboxID}/fork`. */
  async serves(path: string): Promise<boolean> {
    return path in (JSON.parse(await this.#api("GET", "/openapi.json", 200)) as { paths: object }).paths;
  }

  /** Keeps the state of a running sandbox; returns the snapshot's name. */
  async snapshot({ id }: Sandbox): Promise<string> {
    const made = await this.#api("POST", `/sandboxes/${id}/snapshots`, 201, {});
    return (JSON.parse(made) as { snapshotID: string }).snapshotID;
  }

  async deleteSnapshot(snapshotId: string): Promise<void> {
    await this.#api("DELETE", `/templates/${encodeURIComponent(snapshotId)}`, 204);
  }

  /** The server's own figures, Prometheus' text. */
  async metrics(): Promise<string> {
    return await this.#api("GET", "/metrics", 200);
  }

  async kill({ id }: Sandbox): Promise<void> {
    await this.#api("DELETE", `/sandboxes/${id}`, 204);
  }

  edgeHeaders(id: string, port = AGENT_PORT): Record<string, string> {
    return { "E2b-Sandbox-Id": id, "E2b-Sandbox-Port": String(port) };
  }

  /** Where the host itself reaches a running sandbox, past the edge. */
  slotAddress({ id }: Sandbox): string {
    const file = join(dataPaths(this.server.dataDir).machines, `${id}-0001`, "config.json");
    const { linux } = JSON.parse(readFileSync(file, "utf8")) as {
      linux: { namespaces: { type: string; path?: string }[] };
    };
    const name =
      linux.namespaces
        .find(({ type }) => type === "network")
        ?.path?.split("/")
        .at(-1) ?? "";
    const slot = slotOfName(this.#network, name);
    if (slot === undefined) throw new Error(`sandbox ${id} is in "${name}", which is no slot`);
    return slotNetwork(this.#network, slot).hostAddress;
  }

  /** Where the time of a launch went, as the server logged it: step → ms since its start. */
  launchSteps({ id }: Sandbox): Record<string, number> {
    const lines = readFileSync(join(dataPaths(this.server.dataDir).log, "aenvd.log"), "utf8").split("\n");
    const line = lines.findLast((text) => text.includes(id) && text.includes('"steps"'));
    return line === undefined ? {} : (JSON.parse(line) as { steps: Record<string, number> }).steps;
  }

  close(): void {
    this.#agent.destroy();
  }

  async #api(method: string, path: string, expected: number | readonly number[], body?: unknown): Promise<string> {
    const headers = {
      "x-api-key": this.server.apiKey,
      ...(body !== undefined && { "content-type": "application/json" }),
    };
    const { status, text } = await this.#send(
      method,
      path,
      headers,
      body === undefined ? undefined : JSON.stringify(body),
    );
    if (![expected].flat().includes(status)) throw new Error(`${method} ${path} answered ${status}: ${text}`);
    return text;
  }

  #send(method: string, path: string, headers: Record<string, string>, body?: string): Promise<Answer> {
    const { promise, resolve, reject } = Promise.withResolvers<Answer>();
    const outgoing = request(`${this.server.url}${path}`, { method, headers, agent: this.#agent }, (response) => {
      let text = "";
      response.setEncoding("utf8");
      response.on("data", (chunk: string) => {
        text += chunk;
      });
      response.once("end", () => resolve({ status: response.statusCode ?? 0, text }));
      response.once("error", reject);
    });
    outgoing.once("error", reject);
    outgoing.end(body);
    return promise;
  }
}

function sandboxOf(json: string): Sandbox {
  const { sandboxID, envdAccessToken } = JSON.parse(json) as { sandboxID: string; envdAccessToken?: string };
  if (envdAccessToken === undefined) throw new Error(`sandbox ${sandboxID} has no access token`);
  return { id: sandboxID, accessToken: envdAccessToken };
}
