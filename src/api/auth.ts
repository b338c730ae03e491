import { createHash, timingSafeEqual } from "node:crypto";
import { isIP } from "node:net";
import type { Context, MiddlewareHandler } from "hono";
import { matchedRoutes } from "hono/route";
import { AenvError } from "#domain";
import type { ApiDeps, ApiEnv, ApiKeys } from "./deps.ts";

/** Routes that need no key. Whatever is not listed needs one. */
const PUBLIC = new Set(["/health", "/version", "/openapi.json"]);

/** The address of the client, set by the edge on every request (it overwrites what a client sends). */
export const PEER_HEADER = "x-aenv-peer";
/** How it came, `http` or `https`; the edge's word as well. */
export const SCHEME_HEADER = "x-aenv-scheme";

/** What proxies add, by RFC 7239, RFC 9110 7.6.3 and custom. */
const PROXY_HEADER = /^(?:forwarded|x-forwarded-.+|x-real-ip|via)$/;

/** Compares digests, so that neither content nor length of a key shows in the time it takes. */
export function createApiKeys(keys: readonly string[]): ApiKeys {
  const digest = (text: string): Buffer => createHash("sha256").update(text).digest();
  const digests = keys.filter((key) => key !== "").map(digest);
  return {
    verify(key) {
      const given = digest(key);
      // Every one is compared, also after a match.
      return digests.map((known) => timingSafeEqual(known, given)).includes(true);
    },
  };
}

/** Lets a request through to a route that is public, or with a right key. Paths without a route go on to their 404. */
export function requireKey(deps: ApiDeps): MiddlewareHandler<ApiEnv> {
  return async (c, next) => {
    const route = matchedRoutes(c).find(({ method }) => method !== "ALL")?.path;
    if (route !== undefined && !mayPass(route, c, deps)) throw refusal(c, deps);
    await next();
  };
}

function mayPass(route: string, c: Context<ApiEnv>, { apiKeys }: ApiDeps): boolean {
  if (PUBLIC.has(route)) return true;
  if (route === "/metrics" && isFromHere(c)) return true;
  const key = c.req.header("x-api-key") ?? (route === "/teams" ? bearer(c) : undefined);
  return key !== undefined && apiKeys.verify(key);
}

function refusal(c: Context<ApiEnv>, { apiKeyPath }: ApiDeps): AenvError {
  const what = c.req.header("x-api-key") === undefined ? "the API key is missing" : "the API key is wrong";
  return new AenvError("unauthenticated", what, {
    hint: `send the header X-API-Key with the key that lies in ${apiKeyPath} on the server`,
  });
}

/** The token of an `Authorization: Bearer` header. */
export function bearer(c: Context): string | undefined {
  return /^bearer +(\S+)$/i.exec(c.req.header("authorization") ?? "")?.[1];
}

/** Sent by a program of this host for itself. What comes through a proxy on it says so in one of these headers. */
function isFromHere(c: Context): boolean {
  const isPassedOn = [...c.req.raw.headers.keys()].some((name) => PROXY_HEADER.test(name));
  return !isPassedOn && isLoopback(c.req.header(PEER_HEADER));
}

/** An absent or unreadable address is a remote one. */
function isLoopback(address: string | undefined): boolean {
  const plain = address?.replace(/^::ffff:/i, "") ?? "";
  return plain === "::1" || (isIP(plain) === 4 && plain.startsWith("127."));
}
