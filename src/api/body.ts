import type { MiddlewareHandler } from "hono";
import { HTTPException } from "hono/http-exception";
import { AenvError } from "#domain";
import type { ApiEnv } from "./deps.ts";

export const BODY_BYTES_MAX = 1024 * 1024;

const OF_THE_OLD_BODY = ["content-length", "transfer-encoding", "content-encoding"];

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
  const headers = new Headers(c.req.raw.headers);
  for (const name of OF_THE_OLD_BODY) headers.delete(name);
  headers.set("content-type", "application/json");
  c.req.raw = new Request(url, { method, body, headers });
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
