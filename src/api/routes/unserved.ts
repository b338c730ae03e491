import { HTTPException } from "hono/http-exception";
import type { Api } from "../deps.ts";

/**
 * E2B's routes that are not served yet. Without an answer of their own they would be a plain 404, which SDKs take for "this
 * sandbox does not exist".
 */
export const UNSERVED: readonly [method: string, path: string, what: string][] = [
  ["POST", "/sandboxes/:id/snapshots", "snapshots"],
  ["GET", "/snapshots", "snapshots"],
  ["PUT", "/sandboxes/:id/network", "network rules"],
  ["GET", "/sandboxes/metrics", "metrics"],
  ["GET", "/sandboxes/:id/metrics", "metrics"],
  ["GET", "/sandboxes/:id/logs", "logs"],
  ["GET", "/v2/sandboxes/:id/logs", "logs"],
  ["GET", "/templates/:id/files/:hash", "build steps that copy files"],
  ["GET", "/templates/:id/builds/:build/logs", "the paged log of a build"],
  ["PATCH", "/templates/:id", "changing a template"],
  ["PATCH", "/v2/templates/:id", "changing a template"],
  ...["GET", "POST"].map((method): [string, string, string] => [method, "/volumes", "volumes"]),
  ...["GET", "DELETE"].map((method): [string, string, string] => [method, "/volumes/:id", "volumes"]),
  ...["GET", "POST"].map((method): [string, string, string] => [method, "/secrets", "secrets"]),
  ...["GET", "POST", "DELETE"].map((method): [string, string, string] => [method, "/secrets/:id", "secrets"]),
];

/** Registered before the others: some of these paths would be taken for a sandbox's id. */
export function unservedRoutes(app: Api): void {
  for (const [method, path, what] of UNSERVED) {
    app.on(method, path, () => {
      throw new HTTPException(501, { message: `${what}: not served by this server yet` });
    });
  }
}
