import { createRoute, z } from "@hono/zod-openapi";
import { parseTag } from "#catalog";
import type { Api, ApiDeps } from "../deps.ts";
import { TemplateAlias } from "../wire/template.ts";
import { errors, json, jsonBody, TemplateParam, takes } from "./common.ts";

const tags = ["templates"];
const TagNames = z.array(z.string()).min(1).max(100);

const alias = createRoute({
  method: "get",
  path: "/templates/aliases/{alias}",
  tags,
  summary: "Whether a name is taken, and by which template",
  request: { params: z.object({ alias: z.string() }) },
  responses: { 200: json(TemplateAlias, "The template of that name."), ...errors(400, 404) },
});

const assign = createRoute({
  method: "post",
  path: "/templates/tags",
  tags,
  summary: "Point more tags to what a name and tag stand for",
  middleware: jsonBody,
  request: { body: takes(z.object({ target: z.string(), tags: TagNames }).openapi("AssignTemplateTagsRequest")) },
  responses: {
    201: json(z.object({ tags: z.array(z.string()), buildID: z.string() }).openapi("AssignedTemplateTags"), "They do."),
    ...errors(400, 404),
  },
});

const remove = createRoute({
  method: "delete",
  path: "/templates/tags",
  tags,
  summary: "Remove tags, all or none",
  middleware: jsonBody,
  request: { body: takes(z.object({ name: z.string(), tags: TagNames }).openapi("DeleteTemplateTagsRequest")) },
  responses: { 204: { description: "They are gone." }, ...errors(400, 404) },
});

const list = createRoute({
  method: "get",
  path: "/templates/{templateID}/tags",
  tags,
  summary: "A template's tags and their builds",
  request: { params: TemplateParam },
  responses: {
    200: json(
      z.array(z.object({ tag: z.string(), buildID: z.string(), createdAt: z.iso.datetime() }).openapi("TemplateTag")),
      "The tags.",
    ),
    ...errors(404),
  },
});

/** Names of templates and of builds. Registered before the templates themselves: `tags` and `aliases` are no ids. */
export function nameRoutes(app: Api, { cluster }: ApiDeps): void {
  app.openapi(alias, async (c) => {
    const template = await cluster.lookUp(c.req.valid("param").alias);
    return c.json({ templateID: template.id, public: template.public }, 200);
  });

  app.openapi(assign, async (c) => {
    const body = c.req.valid("json");
    const names = body.tags.map((tag) => parseTag(tag, "tags"));
    return c.json({ tags: body.tags, buildID: await cluster.assignTags(body.target, names) }, 201);
  });

  app.openapi(remove, async (c) => {
    const { name, tags: asked } = c.req.valid("json");
    await cluster.removeTags(
      name,
      asked.map((tag) => parseTag(tag, "tags")),
    );
    return c.body(null, 204);
  });

  app.openapi(list, async (c) => {
    const { template, builds } = await cluster.template(c.req.valid("param").templateID);
    const madeAtMs = new Map(builds.map(({ id, finishedAtMs, createdAtMs }) => [id, finishedAtMs ?? createdAtMs]));
    const tagged = Object.entries(template.tags).map(([tag, buildID]) => ({
      tag,
      buildID,
      createdAt: new Date(madeAtMs.get(buildID) ?? template.updatedAtMs).toISOString(),
    }));
    return c.json(tagged, 200);
  });
}
