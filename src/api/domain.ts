import type { Context } from "hono";
import { SCHEME_HEADER } from "./auth.ts";

/**
 * The domain a client is told with a sandbox, or null. It replaces the client's own setting, so it is said only when it is right:
 * to who has reached `api.DOMAIN` by TLS, with the port that was asked.
 */
export function domainOf(c: Context, domain: string): string | null {
  const isSecure = c.req.header(SCHEME_HEADER) === "https" || c.req.header("x-forwarded-proto") === "https";
  const host = c.req.header("host")?.toLowerCase() ?? "";
  const prefix = `api.${domain}`;
  const rest = host.startsWith(prefix) ? host.slice(prefix.length) : undefined;
  return isSecure && rest !== undefined && /^(:\d{1,5})?$/.test(rest) ? domain + rest : null;
}
