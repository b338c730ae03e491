import { createRoute, z } from "@hono/zod-openapi";
import { AenvError, type Sandbox } from "#domain";
import type { Api, ApiDeps } from "../deps.ts";
import { domainOf } from "../domain.ts";
import { type CreateDefaults, NewSandbox, NewSandboxV2, toCreateRequest } from "../wire/create.ts";
import { ListQuery, ListQueryV2, matches, parseMetadata, parseStates, type SandboxFilter } from "../wire/list.ts";
import { nextTokenHeader, page } from "../wire/paging.ts";
import {
  ListedSandbox,
  SandboxBody,
  SandboxDetail,
  toDetail,
  toListed,
  toSandbox,
  wireState,
} from "../wire/sandbox.ts";
import { errors, json, jsonBody, SandboxParam, takes } from "./common.ts";

const created = { 201: json(SandboxBody, "It runs and its agent answers."), ...errors(400, 404, 413, 429, 503, 504) };

const create = createRoute({
  method: "post",
  path: "/sandboxes",
  tags: ["sandboxes"],
  summary: "Start a sandbox (15 s unless said otherwise)",
  middleware: jsonBody,
  request: { body: takes(NewSandbox) },
  responses: created,
});

const createV2 = createRoute({
  method: "post",
  path: "/v2/sandboxes",
  tags: ["sandboxes"],
  summary: "Start a secured sandbox (300 s unless said otherwise)",
  middleware: jsonBody,
  request: { body: takes(NewSandboxV2) },
  responses: created,
});

const list = createRoute({
  method: "get",
  path: "/sandboxes",
  tags: ["sandboxes"],
  summary: "Running sandboxes, newest first",
  request: { query: ListQuery },
  responses: { 200: json(z.array(ListedSandbox), "All that run."), ...errors(400) },
});

const listV2 = createRoute({
  method: "get",
  path: "/v2/sandboxes",
  tags: ["sandboxes"],
  summary: "Running and paused sandboxes, by filters and pages",
  request: { query: ListQueryV2 },
  responses: {
    200: {
      ...json(z.array(ListedSandbox), "A page."),
      headers: z.object({
        "X-Next-Token": z.string().optional().openapi({ description: "Absent on the last page." }),
        "X-Total-Running": z.string().openapi({ description: "How many run of those the filters let through." }),
      }),
    },
    ...errors(400),
  },
});

const get = createRoute({
  method: "get",
  path: "/sandboxes/{sandboxID}",
  tags: ["sandboxes"],
  summary: "One sandbox, running or paused",
  request: { params: SandboxParam },
  responses: { 200: json(SandboxDetail, "The sandbox."), ...errors(404) },
});

const kill = createRoute({
  method: "delete",
  path: "/sandboxes/{sandboxID}",
  tags: ["sandboxes"],
  summary: "End a sandbox for good, running or paused",
  request: { params: SandboxParam },
  responses: { 204: { description: "It is gone." }, ...errors(404) },
});

/** Sandboxes come, are seen, and go. */
export function sandboxRoutes(app: Api, { cluster, domain, maxTimeoutMs }: ApiDeps): void {
  const start = async (body: z.output<typeof NewSandboxV2>, defaults: Omit<CreateDefaults, "maxTimeoutMs">) =>
    await cluster.create(toCreateRequest(body, { ...defaults, maxTimeoutMs }));

  app.openapi(create, async (c) => {
    const body = c.req.valid("json");
    const sandbox = await start(body, { timeoutSeconds: 15, secure: body.secure ?? false });
    return c.json(toSandbox(sandbox, domainOf(c, domain)), 201);
  });

  app.openapi(createV2, async (c) => {
    const sandbox = await start(c.req.valid("json"), { timeoutSeconds: 300, secure: true });
    return c.json(toSandbox(sandbox, domainOf(c, domain)), 201);
  });

  app.openapi(list, async (c) => {
    const filter = { metadata: parseMetadata(c.req.valid("query").metadata) };
    const running = (await cluster.list()).filter((each) => isRunning(each) && matches(each, filter));
    return c.json(running.map(toListed), 200);
  });

  app.openapi(listV2, async (c) => {
    const query = c.req.valid("query");
    const inState = parseStates(query.state);
    const filter = await filterOf(query);
    const found = filter === undefined ? [] : (await cluster.list()).filter((each) => matches(each, filter));
    const { items, nextToken } = page(found.filter(inState), ({ startedAtMs: atMs, id }) => ({ atMs, id }), query);
    const total = found.filter(isRunning).length;
    return c.json(items.map(toListed), 200, { ...nextTokenHeader(nextToken), "X-Total-Running": String(total) });
  });

  app.openapi(get, async (c) => {
    const sandbox = await cluster.get(c.req.valid("param").sandboxID);
    return c.json(toDetail(sandbox, domainOf(c, domain)), 200);
  });

  app.openapi(kill, async (c) => {
    await cluster.kill(c.req.valid("param").sandboxID);
    return c.body(null, 204);
  });

  /** undefined: the template it asks for is not there, so nothing can match. */
  async function filterOf(query: z.output<typeof ListQueryV2>): Promise<SandboxFilter | undefined> {
    const metadata = parseMetadata(query.metadata);
    const start = query.startedAfter === undefined ? {} : { startedAfterMs: Date.parse(query.startedAfter) };
    if (!query.template) return { metadata, ...start };
    try {
      return { metadata, ...start, templateId: (await cluster.lookUp(query.template)).id };
    } catch (error) {
      if (error instanceof AenvError && error.kind === "not-found") return undefined;
      throw error;
    }
  }
}

function isRunning(sandbox: Sandbox): boolean {
  return wireState(sandbox) === "running";
}
