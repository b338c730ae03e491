import { createRoute, z } from "@hono/zod-openapi";
import type { Api, ApiDeps } from "../deps.ts";
import { json } from "./common.ts";

const health = createRoute({
  method: "get",
  path: "/health",
  tags: ["server"],
  summary: "Whether the server answers",
  security: [],
  responses: { 204: { description: "It does." } },
});

const version = createRoute({
  method: "get",
  path: "/version",
  tags: ["server"],
  summary: "What runs here",
  security: [],
  responses: {
    200: json(
      z
        .object({
          version: z.string(),
          commit: z.string(),
          dataFormat: z.int().openapi({ description: "Format of the data directory." }),
        })
        .openapi("Version"),
      "The running version.",
    ),
  },
});

const metrics = createRoute({
  method: "get",
  path: "/metrics",
  tags: ["server"],
  summary: "Figures for Prometheus; from loopback no key is needed",
  responses: { 200: { description: "Prometheus text.", content: { "text/plain": { schema: z.string() } } } },
});

/** The server about itself. */
export function systemRoutes(app: Api, deps: ApiDeps): void {
  app.openapi(health, (c) => c.body(null, 204));
  app.openapi(version, (c) => c.json({ ...deps.version }, 200));
  app.openapi(metrics, (c) => c.text(deps.metrics(), 200, { "Content-Type": "text/plain; version=0.0.4" }));
  app.openAPIRegistry.registerComponent("securitySchemes", "ApiKey", {
    type: "apiKey",
    in: "header",
    name: "X-API-Key",
  });
  let document: unknown;
  app.get("/openapi.json", (c) => {
    document ??= app.getOpenAPI31Document({
      openapi: "3.1.0",
      info: {
        title: "aenv",
        version: deps.version.version,
        license: { name: "Apache-2.0", url: "https://www.apache.org/licenses/LICENSE-2.0" },
      },
      security: [{ ApiKey: [] }],
    });
    return c.json(document as object);
  });
}
