import type { OpenAPIHono } from "@hono/zod-openapi";
import type { Builder } from "#builder";
import type { Cluster } from "#cluster";
import type { Logger } from "#lib/log";

/** What the API needs of the rest. */
export interface ApiDeps {
  readonly cluster: Cluster;
  readonly builder: Builder;
  readonly logger: Logger;
  readonly apiKeys: ApiKeys;
  /** Where the operator's key lies; a 401 says so. */
  readonly apiKeyPath: string;
  readonly version: VersionInfo;
  /** Sandboxes are reached at `<port>-<id>.<domain>`, this API at `api.<domain>`. */
  readonly domain: string;
  readonly maxTimeoutMs: number;
  /** Largest machine a template may ask for. */
  readonly maxResources: { readonly vcpus: number; readonly memoryBytes: number; readonly diskBytes: number };
  /** Prometheus text. */
  readonly metrics: () => string;
}

export interface ApiKeys {
  verify(key: string): boolean;
}

export interface VersionInfo {
  readonly version: string;
  readonly commit: string;
  /** Format of what lies in the data directory. */
  readonly dataFormat: number;
}

export interface ApiEnv {
  Variables: { requestId: string };
}

export type Api = OpenAPIHono<ApiEnv>;
