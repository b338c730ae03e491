import { HTTPException } from "hono/http-exception";
import type { Api } from "../deps.ts";

/**
 * E2B's routes that are not served yet. Without an answer of their own they would be a plain 404, which SDKs take for "this
 * sandbox does not exist".
 */
export const UNSERVED: readonly [method: string, path: string, what: string, status: 403 | 501][] = [
  ["GET", "/templates/:id/files/:hash", "build steps that copy files", 501],
  ["GET", "/templates/:id/builds/:build/logs", "the paged log of a build", 501],
  ["PATCH", "/templates/:id", "changing a template", 501],
  ["PATCH", "/v2/templates/:id", "changing a template", 501],
  ["GET", "/secrets", "secrets", 501],
  ["POST", "/secrets", "secrets", 501],
  ["GET", "/secrets/:id", "secrets", 501],
  ["POST", "/secrets/:id", "secrets", 501],
  ["DELETE", "/secrets/:id", "secrets", 501],
  // Features that E2B's server has switched off for some: 403 there.
  ["PUT", "/sandboxes/:id/network", "network rules", 403],
  ["GET", "/volumes", "volumes", 403],
  ["POST", "/volumes", "volumes", 403],
  ["GET", "/volumes/:id", "volumes", 403],
  ["DELETE", "/volumes/:id", "volumes", 403],
];

/** Registered before the others: some of these paths would be taken for a sandbox's id. */
export function unservedRoutes(app: Api): void {
  for (const [method, path, what, status] of UNSERVED) {
    const message = status === 403 ? `${what}: not enabled` : `${what}: not served by this server yet`;
    app.on(method, path, () => {
      throw new HTTPException(status, { message });
    });
  }
}
