import { ImageBuilder } from "#builder";
import { MemoryCatalog, Templates } from "#catalog";
import { SingleNodeCluster } from "#cluster";
import { GIB } from "#domain";
import { createLogger } from "#lib/log";
// A door shows no test doubles; this file is one itself.
import { FakeNode } from "../cluster/testing.ts";
import { type Api, createApi, createApiKeys } from "./index.ts";

export const KEY = "e2b_0123456789abcdef0123456789abcdef01234567";

/** An API over a fake node: the real routes, cluster, builder and records in one process. */
export class TestApi {
  readonly node = new FakeNode();
  readonly logged: string[] = [];
  readonly builder: ImageBuilder;
  readonly app: Api;

  constructor() {
    const { node } = this;
    const nowMs = () => node.nowMs;
    const logger = createLogger("info", (line) => this.logged.push(line));
    const templates = new Templates(new MemoryCatalog(), nowMs);
    const cluster = new SingleNodeCluster({ node, templates, logger });
    this.builder = new ImageBuilder({ node, templates, logger, nowMs, onPublished: () => cluster.collect() });
    this.app = createApi({
      cluster,
      builder: this.builder,
      logger,
      apiKeys: createApiKeys([KEY]),
      apiKeyPath: "/data/api-key",
      version: { version: "1.2.3", commit: "abc", dataFormat: 1 },
      domain: "e2b.test",
      maxTimeoutMs: 24 * 3_600_000,
      maxResources: { vcpus: 32, memoryBytes: 64 * GIB, diskBytes: 100 * GIB },
      metrics: () => "aenv_up 1\n",
    });
  }

  /** One request with the key, unless `headers` says otherwise; a body that is no string goes as JSON. */
  async call(method: string, path: string, body?: unknown, headers: Record<string, string> = {}): Promise<Answer> {
    const init: RequestInit = { method, headers: { "X-API-Key": KEY, ...headers } };
    if (body !== undefined) init.body = typeof body === "string" ? body : JSON.stringify(body);
    const response = await this.app.request(path, init);
    const text = await response.text();
    const isJson = response.headers.get("content-type")?.startsWith("application/json");
    return { status: response.status, headers: response.headers, text, body: isJson ? JSON.parse(text) : undefined };
  }

  /** Builds a template as a client does and returns its ids. */
  async publish(name: string, tags: string[] = []): Promise<{ templateID: string; buildID: string }> {
    const { body } = await this.call("POST", "/v3/templates", { name, tags });
    const { templateID, buildID } = body as { templateID: string; buildID: string };
    await this.call("POST", `/v2/templates/${templateID}/builds/${buildID}`, { fromImage: "debian:12" });
    for (;;) {
      const { body: info } = await this.call("GET", `/templates/${templateID}/builds/${buildID}/status`);
      if (info.status === "ready") return { templateID, buildID };
      if (info.status === "error") throw new Error(JSON.stringify(info));
      await new Promise(setImmediate);
    }
  }

  /** A running sandbox's id. */
  async create(fields: Record<string, unknown> = {}): Promise<string> {
    const { status, body } = await this.call("POST", "/v2/sandboxes", { templateID: "base", ...fields });
    if (status !== 201) throw new Error(JSON.stringify(body));
    return body.sandboxID;
  }
}

export interface Answer {
  readonly status: number;
  readonly headers: Headers;
  readonly text: string;
  // biome-ignore lint/suspicious/noExplicitAny: tests look into answers of every shape
  readonly body: any;
}
