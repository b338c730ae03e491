import { createRoute, z } from "@hono/zod-openapi";
import type { ForkResult } from "#domain";
import type { Api, ApiDeps } from "../deps.ts";
import { domainOf } from "../domain.ts";
import { ErrorBody, errorBody } from "../errors.ts";
import { SandboxBody, toSandbox } from "../wire/sandbox.ts";
import { lifeToMs, optionalToMs, Seconds, secondsToMs } from "../wire/timeout.ts";
import { errors, json, jsonBody, mayTake, SandboxParam, takes } from "./common.ts";

const FORKS_MAX = 100;
const REFRESH_SECONDS = { max: 3600, default: 15 };

const shared = { method: "post" as const, tags: ["sandboxes"], middleware: jsonBody };

const setTimeout = createRoute({
  ...shared,
  path: "/sandboxes/{sandboxID}/timeout",
  summary: "End its life that many seconds from now, sooner or later than it would",
  request: { params: SandboxParam, body: takes(z.object({ timeout: Seconds })) },
  responses: { 204: { description: "Done." }, ...errors(400, 404, 409) },
});

const refresh = createRoute({
  ...shared,
  path: "/sandboxes/{sandboxID}/refreshes",
  summary: "Let it live at least that many more seconds",
  request: {
    params: SandboxParam,
    body: mayTake(z.object({ duration: z.int().min(0).max(REFRESH_SECONDS.max).nullish() })),
  },
  responses: { 204: { description: "Done." }, ...errors(400, 404, 409) },
});

const pause = createRoute({
  ...shared,
  path: "/sandboxes/{sandboxID}/pause",
  summary: "Put it to rest; 204 when its memory and files are on disk, with memory: false its files alone",
  request: { params: SandboxParam, body: mayTake(z.object({ memory: z.boolean().nullish() })) },
  responses: { 204: { description: "It is paused." }, ...errors(400, 404, 409, 503) },
});

const resume = createRoute({
  ...shared,
  path: "/sandboxes/{sandboxID}/resume",
  summary: "Wake a paused one; its own timeout unless one is given",
  request: {
    params: SandboxParam,
    body: mayTake(z.object({ timeout: Seconds.nullish(), memory: z.boolean().nullish() })),
  },
  responses: { 201: json(SandboxBody, "It runs."), ...errors(400, 404, 409, 429, 503) },
});

const connected = {
  200: json(SandboxBody, "It was running."),
  201: json(SandboxBody, "It was paused and runs again."),
  ...errors(400, 404, 409, 429, 503),
};

const connect = createRoute({
  ...shared,
  path: "/sandboxes/{sandboxID}/connect",
  summary: "Make sure it runs, at least that many more seconds",
  request: { params: SandboxParam, body: takes(z.object({ timeout: Seconds, memory: z.boolean().nullish() })) },
  responses: connected,
});

const connectV2 = createRoute({
  ...shared,
  path: "/v2/sandboxes/{sandboxID}/connect",
  summary: "Make sure it runs; a woken one gets its own timeout unless one is given",
  request: {
    params: SandboxParam,
    body: mayTake(z.object({ timeout: Seconds.nullish(), memory: z.boolean().nullish() })),
  },
  responses: connected,
});

const ForkAnswer = z.union([z.object({ sandbox: SandboxBody }), z.object({ error: ErrorBody })]).openapi("ForkResult");

const fork = createRoute({
  ...shared,
  path: "/sandboxes/{sandboxID}/fork",
  summary: "Copies of a running one, all from one moment",
  request: {
    params: SandboxParam,
    body: mayTake(z.object({ count: z.int().min(1).max(FORKS_MAX).nullish(), timeout: Seconds.nullish() })),
  },
  responses: { 201: json(z.array(ForkAnswer), "One result for each copy."), ...errors(400, 404, 409, 429, 503) },
});

/** What happens to a sandbox while it is there. */
export function lifecycleRoutes(app: Api, { cluster, logger, domain, maxTimeoutMs }: ApiDeps): void {
  app.openapi(setTimeout, async (c) => {
    const seconds = Math.max(0, c.req.valid("json").timeout);
    await cluster.setTimeout(c.req.valid("param").sandboxID, secondsToMs(seconds, maxTimeoutMs));
    return c.body(null, 204);
  });

  app.openapi(refresh, async (c) => {
    const seconds = c.req.valid("json").duration ?? REFRESH_SECONDS.default;
    await cluster.extendTimeout(c.req.valid("param").sandboxID, secondsToMs(seconds, maxTimeoutMs, "duration"));
    return c.body(null, 204);
  });

  app.openapi(pause, async (c) => {
    const capture = c.req.valid("json").memory === false ? "disk" : "memory";
    await cluster.pause(c.req.valid("param").sandboxID, capture);
    return c.body(null, 204);
  });

  app.openapi(resume, async (c) => {
    const { timeout, memory } = c.req.valid("json");
    const timeoutMs = optionalToMs(timeout, maxTimeoutMs);
    const sandbox = await cluster.resume(c.req.valid("param").sandboxID, timeoutMs, { reboot: memory === false });
    return c.json(toSandbox(sandbox, domainOf(c, domain)), 201);
  });

  const connectTo = async (
    id: string,
    body: { timeout?: number | null | undefined; memory?: boolean | null | undefined },
  ) => {
    const reboot = body.memory === false;
    return await cluster.connect(id, optionalToMs(body.timeout, maxTimeoutMs), { reboot });
  };

  app.openapi(connect, async (c) => {
    const { sandbox, resumed } = await connectTo(c.req.valid("param").sandboxID, c.req.valid("json"));
    const body = toSandbox(sandbox, domainOf(c, domain));
    return resumed ? c.json(body, 201) : c.json(body, 200);
  });

  app.openapi(connectV2, async (c) => {
    const { sandbox, resumed } = await connectTo(c.req.valid("param").sandboxID, c.req.valid("json"));
    const body = toSandbox(sandbox, domainOf(c, domain));
    return resumed ? c.json(body, 201) : c.json(body, 200);
  });

  app.openapi(fork, async (c) => {
    const { count, timeout } = c.req.valid("json");
    const timeoutMs = timeout === null || timeout === undefined ? undefined : lifeToMs(timeout, maxTimeoutMs);
    const results = await cluster.fork(c.req.valid("param").sandboxID, count ?? 1, timeoutMs);
    const answer = (result: ForkResult) =>
      "sandbox" in result
        ? { sandbox: toSandbox(result.sandbox, domainOf(c, domain)) }
        : { error: errorBody(result.error, c.get("requestId"), logger) };
    return c.json(results.map(answer), 201);
  });
}
