import { createRoute, z } from "@hono/zod-openapi";
import type { Api, ApiDeps } from "../deps.ts";
import {
  BuildInfo,
  BuildStart,
  BuildStatusQuery,
  NewTemplate,
  NewTemplateAnswer,
  toBuildInfo,
  toBuildPlan,
  toResources,
} from "../wire/build.ts";
import { errors, json, jsonBody, TemplateParam, takes } from "./common.ts";

const tags = ["templates"];
const BuildParam = TemplateParam.extend({ buildID: z.string() });

const request = createRoute({
  method: "post",
  path: "/v3/templates",
  tags,
  summary: "Ask for a build of a template, which is made if its name is new",
  middleware: jsonBody,
  request: { body: takes(NewTemplate) },
  responses: { 202: json(NewTemplateAnswer, "The build waits to be started."), ...errors(400, 429) },
});

const start = createRoute({
  method: "post",
  path: "/v2/templates/{templateID}/builds/{buildID}",
  tags,
  summary: "Start a waiting build: from an image, with a start command",
  middleware: jsonBody,
  request: { params: BuildParam, body: takes(BuildStart) },
  responses: { 202: { description: "It is building." }, ...errors(400, 404, 429) },
});

const status = createRoute({
  method: "get",
  path: "/templates/{templateID}/builds/{buildID}/status",
  tags,
  summary: "How a build is doing, and its log from an offset on",
  request: { params: BuildParam, query: BuildStatusQuery },
  responses: { 200: json(BuildInfo, "The build."), ...errors(400, 404) },
});

/** Templates in the making. */
export function buildRoutes(app: Api, { builder, maxResources }: ApiDeps): void {
  app.openapi(request, async (c) => {
    const body = c.req.valid("json");
    const resources = toResources(body, maxResources);
    const {
      template,
      build,
      tags: given,
    } = await builder.request({ name: body.name, tags: body.tags ?? [], resources });
    const names = { names: [...template.names], aliases: [...template.names] };
    const ids = { templateID: template.id, buildID: build.id };
    return c.json({ ...ids, public: template.public, ...names, tags: [...given] }, 202);
  });

  app.openapi(start, async (c) => {
    const { templateID, buildID } = c.req.valid("param");
    await builder.start(templateID, buildID, toBuildPlan(c.req.valid("json")));
    // A chunked empty body breaks the JS SDK, and only a said length keeps it from being chunked.
    return c.body(null, 202, { "Content-Length": "0" });
  });

  app.openapi(status, async (c) => {
    const { templateID, buildID } = c.req.valid("param");
    return c.json(toBuildInfo(await builder.view(templateID, buildID), c.req.valid("query")), 200);
  });
}
