import { randomUUID } from "node:crypto";
import { OpenAPIHono } from "@hono/zod-openapi";
import type { MiddlewareHandler } from "hono";
import { cors } from "hono/cors";
import { requireKey } from "./auth.ts";
import type { Api, ApiDeps, ApiEnv } from "./deps.ts";
import { errorResponse, unmatched, validationError } from "./errors.ts";
import { buildRoutes } from "./routes/builds.ts";
import { lifecycleRoutes } from "./routes/lifecycle.ts";
import { nameRoutes } from "./routes/names.ts";
import { sandboxRoutes } from "./routes/sandboxes.ts";
import { snapshotRoutes } from "./routes/snapshots.ts";
import { systemRoutes } from "./routes/system.ts";
import { teamRoutes } from "./routes/teams.ts";
import { telemetryRoutes } from "./routes/telemetry.ts";
import { templateRoutes } from "./routes/templates.ts";
import { unservedRoutes } from "./routes/unserved.ts";

export { createApiKeys } from "./auth.ts";
export type { Api, ApiDeps, ApiKeys, VersionInfo } from "./deps.ts";

/** The E2B face of a cluster: `api.fetch` answers requests. Holds nothing that must be closed. */
export function createApi(deps: ApiDeps): Api {
  const app: Api = new OpenAPIHono<ApiEnv>({
    defaultHook: (result) => {
      if (!result.success) throw validationError(result.error);
    },
  });
  app.use(identify(deps));
  app.use(anyOrigin());
  app.use(requireKey(deps));
  unservedRoutes(app);
  systemRoutes(app, deps);
  teamRoutes(app);
  // Before the others: `metrics` would be taken for a sandbox's id.
  telemetryRoutes(app, deps);
  sandboxRoutes(app, deps);
  lifecycleRoutes(app, deps);
  snapshotRoutes(app, deps);
  nameRoutes(app, deps);
  templateRoutes(app, deps);
  buildRoutes(app, deps);
  app.onError((error, c) => errorResponse(error, c, deps.logger));
  app.notFound((c) => unmatched(app, c));
  return app;
}

/** Gives each request an id, sent back and logged. */
function identify({ logger }: ApiDeps): MiddlewareHandler<ApiEnv> {
  return async (c, next) => {
    const requestId = randomUUID();
    const startedMs = performance.now();
    c.set("requestId", requestId);
    await next();
    c.header("X-Request-Id", requestId);
    const { method, path } = c.req;
    const durationMs = Math.round(performance.now() - startedMs);
    logger.debug("request", { requestId, method, path, status: c.res.status, durationMs });
  };
}

/** Keys travel in a header of their own, never by cookie, so any page may call. Asked-for headers are allowed as asked. */
function anyOrigin(): MiddlewareHandler<ApiEnv> {
  return cors({
    origin: "*",
    allowMethods: ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"],
    exposeHeaders: ["X-Next-Token", "X-Total-Running", "X-Request-Id", "Retry-After"],
    maxAge: 600,
  });
}
