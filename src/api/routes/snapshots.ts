import { createRoute, z } from "@hono/zod-openapi";
import type { Api, ApiDeps } from "../deps.ts";
import { nextTokenHeader, page } from "../wire/paging.ts";
import { NewSnapshot, positionOf, SnapshotInfo, SnapshotQuery, toSnapshotInfo } from "../wire/snapshot.ts";
import { errors, json, jsonBody, mayTake, SandboxParam, sandboxIdOf } from "./common.ts";

const tags = ["snapshots"];

const create = createRoute({
  method: "post",
  path: "/sandboxes/{sandboxID}/snapshots",
  tags,
  summary:
    "Capture a running sandbox, which goes on, as what others are created from; with memory: false its files alone",
  middleware: jsonBody,
  request: { params: SandboxParam, body: mayTake(NewSnapshot) },
  responses: { 201: json(SnapshotInfo, "It is on disk."), ...errors(400, 404, 409, 503) },
});

const list = createRoute({
  method: "get",
  path: "/snapshots",
  tags,
  summary: "Captured sandboxes by filters and pages, newest first",
  request: { query: SnapshotQuery },
  responses: {
    200: {
      ...json(z.array(SnapshotInfo), "A page, one for each name or id."),
      headers: z.object({ "X-Next-Token": z.string().optional() }),
    },
    ...errors(400),
  },
});

/** Captured sandboxes. They are templates of their own kind: created from and deleted as templates are. */
export function snapshotRoutes(app: Api, { cluster }: ApiDeps): void {
  app.openapi(create, async (c) => {
    const { name, memory } = c.req.valid("json");
    const made = await cluster.createSnapshot(c.req.valid("param").sandboxID, {
      ...(name && { name }),
      ...(memory === false && { capture: "disk" }),
    });
    return c.json(toSnapshotInfo(made), 201);
  });

  app.openapi(list, async (c) => {
    const { sandboxID, name, ...paging } = c.req.valid("query");
    const found = await cluster.listSnapshots({
      ...(sandboxID && { sandboxId: sandboxIdOf(sandboxID) }),
      ...(name && { name }),
    });
    const { items, nextToken } = page(found, positionOf, paging);
    return c.json(items.map(toSnapshotInfo), 200, nextTokenHeader(nextToken));
  });
}
