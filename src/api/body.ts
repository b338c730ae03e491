import type { MiddlewareHandler } from "hono";
import { HTTPException } from "hono/http-exception";
import { AenvError } from "#domain";
import type { ApiEnv } from "./deps.ts";

export const BODY_BYTES_MAX = 1024 * 1024;

/**
 * For routes with a JSON body: reads it, whatever its type is said to be, no further than the limit; an empty one is
 * `{}`. The route's schema then sees a JSON body always.
 */
export const jsonBody: MiddlewareHandler<ApiEnv> = async (c, next) => {
  const { url, method } = c.req.raw;
  const text = await readText(c.req.raw);
  const body = text.trim() === "" ? "{}" : text;
  try {
    JSON.parse(body);
  } catch (error) {
    throw new AenvError("invalid", `the body is not valid JSON: ${(error as Error).message}`, { field: "body" });
  }
  c.req.raw = new Request(url, { method, body, headers: { "content-type": "application/json" } });
  await next();
};

async function readText(request: Request): Promise<string> {
  if (request.body === null) return "";
  const tooLarge = () => new HTTPException(413, { message: `the body is larger than ${BODY_BYTES_MAX} bytes` });
  if (Number(request.headers.get("content-length") ?? 0) > BODY_BYTES_MAX) throw tooLarge();
  const chunks: Uint8Array[] = [];
  let length = 0;
  for await (const chunk of request.body) {
    length += chunk.byteLength;
    if (length > BODY_BYTES_MAX) throw tooLarge();
    chunks.push(chunk);
  }
  return Buffer.concat(chunks).toString("utf8");
}
