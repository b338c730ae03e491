import { createRoute, z } from "@hono/zod-openapi";
import { TEAM } from "#catalog";
import { bearer } from "../auth.ts";
import type { Api } from "../deps.ts";
import { errors, json } from "./common.ts";

const Team = z
  .object({ teamID: z.string(), name: z.string(), apiKey: z.string(), isDefault: z.boolean() })
  .openapi("Team");

const list = createRoute({
  method: "get",
  path: "/teams",
  tags: ["teams"],
  summary: "The one team; the key may also come as a bearer token",
  responses: { 200: json(z.array(Team), "The team."), ...errors() },
});

/** What a CLI asks for when it logs in. */
export function teamRoutes(app: Api): void {
  app.openapi(list, (c) => {
    // The key it came with is a right one, so it is the team's.
    const apiKey = c.req.header("x-api-key") ?? bearer(c) ?? "";
    return c.json([{ teamID: TEAM.id, name: TEAM.name, apiKey, isDefault: true }], 200);
  });
}
