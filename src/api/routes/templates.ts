import { createRoute, z } from "@hono/zod-openapi";
import type { Api, ApiDeps } from "../deps.ts";
import { nextTokenHeader, PageQuery, page } from "../wire/paging.ts";
import { TemplateBody, TemplateWithBuilds, toTemplate, toTemplateWithBuilds } from "../wire/template.ts";
import { errors, json, TemplateParam } from "./common.ts";

const tags = ["templates"];

const list = createRoute({
  method: "get",
  path: "/templates",
  tags,
  summary: "All templates, newest first",
  responses: { 200: json(z.array(TemplateBody), "All templates."), ...errors() },
});

const paged = { headers: z.object({ "X-Next-Token": z.string().optional() }) };

const listV2 = createRoute({
  method: "get",
  path: "/v2/templates",
  tags,
  summary: "Templates by pages, newest first",
  request: { query: PageQuery },
  responses: { 200: { ...json(z.array(TemplateBody), "A page."), ...paged }, ...errors(400) },
});

const get = createRoute({
  method: "get",
  path: "/templates/{templateID}",
  tags,
  summary: "A template and a page of its builds, newest first",
  request: { params: TemplateParam, query: PageQuery },
  responses: { 200: { ...json(TemplateWithBuilds, "The template."), ...paged }, ...errors(400, 404) },
});

const remove = createRoute({
  method: "delete",
  path: "/templates/{templateID}",
  tags,
  summary: "Delete a template that no sandbox uses",
  request: { params: TemplateParam },
  responses: { 204: { description: "It is gone." }, ...errors(400, 404) },
});

/** Templates as they stand. */
export function templateRoutes(app: Api, { cluster, builder }: ApiDeps): void {
  app.openapi(list, async (c) => c.json((await cluster.listTemplates()).map(toTemplate), 200));

  app.openapi(listV2, async (c) => {
    const all = await cluster.listTemplates();
    const at = ({ template }: (typeof all)[number]) => ({ atMs: template.createdAtMs, id: template.id });
    const { items, nextToken } = page(all, at, c.req.valid("query"));
    return c.json(items.map(toTemplate), 200, nextTokenHeader(nextToken));
  });

  app.openapi(get, async (c) => {
    const { template, builds } = await cluster.template(c.req.valid("param").templateID);
    const { items, nextToken } = page(builds, ({ createdAtMs: atMs, id }) => ({ atMs, id }), c.req.valid("query"));
    return c.json(toTemplateWithBuilds(template, items), 200, nextTokenHeader(nextToken));
  });

  app.openapi(remove, async (c) => {
    const template = await cluster.deleteTemplate(c.req.valid("param").templateID);
    await builder.cancel(template.id);
    return c.body(null, 204);
  });
}
