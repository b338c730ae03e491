import { z } from "@hono/zod-openapi";
import type { Context } from "hono";
import { HTTPException } from "hono/http-exception";
import type { ContentfulStatusCode } from "hono/utils/http-status";
import { AenvError, type ErrorKind, logLevelOf } from "#domain";
import type { Logger } from "#lib/log";
import type { Api, ApiEnv } from "./deps.ts";

/** The one table from kinds to HTTP. */
const STATUS: Readonly<Record<ErrorKind, ContentfulStatusCode>> = {
  invalid: 400,
  unauthenticated: 401,
  forbidden: 403,
  "not-found": 404,
  conflict: 409,
  exhausted: 429,
  // Clients send 429, 503 and 504 again, creates too: they are said only when nothing was created.
  unavailable: 503,
  deadline: 504,
  internal: 500,
};

const RETRY_AFTER_SECONDS = 1;

export const ErrorBody = z
  .object({
    code: z.int().openapi({ description: "The HTTP status." }),
    message: z.string(),
    error_code: z.string().optional(),
    requestId: z.string().optional().openapi({ description: "What the server's log calls this request." }),
  })
  .openapi("Error");
export type ErrorBody = z.infer<typeof ErrorBody>;

/** The body of an error, also where one is a part of an answer (a fork that failed). Internal ones are logged here. */
export function errorBody(
  error: unknown,
  requestId: string,
  logger: Logger,
): ErrorBody & { code: ContentfulStatusCode } {
  if (error instanceof HTTPException) return { code: error.status as ContentfulStatusCode, message: error.message };
  if (!(error instanceof AenvError) || error.kind === "internal") {
    logger.error("request failed", { requestId, error });
    return { code: 500, message: `internal error; the server's log names request ${requestId}`, requestId };
  }
  const level = logLevelOf(error);
  if (level !== undefined) logger[level]("request refused", { requestId, error });
  const body = { code: STATUS[error.kind], message: messageOf(error) };
  return error.code === undefined ? body : { ...body, error_code: error.code };
}

export function errorResponse(error: unknown, c: Context<ApiEnv>, logger: Logger): Response {
  const body = errorBody(error, c.get("requestId"), logger);
  const headers: Record<string, string> = body.code === 429 ? { "Retry-After": String(RETRY_AFTER_SECONDS) } : {};
  return c.json(body, body.code, headers);
}

/** Message, hint, and the field in front where the message does not name it. */
function messageOf(error: AenvError): string {
  const { message, hint, field } = error;
  const named = field === undefined || message.toLowerCase().includes(field.toLowerCase());
  return `${named ? "" : `${field}: `}${message}${hint === undefined ? "" : `; ${hint}`}`;
}

/** The first thing a schema complains about, with the path of the field (`network.allowOut[0]`). */
export function validationError(error: z.core.$ZodError): AenvError {
  const issue = error.issues[0];
  const field = (issue?.path ?? []).reduce<string>(
    (path, key) => (typeof key === "number" ? `${path}[${key}]` : path === "" ? String(key) : `${path}.${String(key)}`),
    "",
  );
  const said = (issue?.message ?? "invalid").replace(/^Invalid input: /, "");
  return new AenvError("invalid", `validation error: ${field === "" ? "body" : field}: ${said}`, {
    field: field || "body",
  });
}

const METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"];

/** 404 for a path nobody serves, 405 with `Allow` for one that is served by other methods. */
export function unmatched(app: Api, c: Context<ApiEnv>): Response {
  const { path, method } = c.req;
  const allowed = METHODS.filter((each) =>
    app.router.match(each, path)[0].some(([[, route]]) => route.method === each),
  );
  if (allowed.length === 0) {
    return c.json({ code: 404, message: `there is no route ${path}; GET /openapi.json lists them` }, 404);
  }
  const Allow = allowed.join(", ");
  return c.json({ code: 405, message: `${path} does not take ${method}, only ${Allow}` }, 405, { Allow });
}
