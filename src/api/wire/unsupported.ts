import { z } from "@hono/zod-openapi";
import { AenvError } from "#domain";

/** A field that E2B knows and this server does not yet: refused unless empty, because ignoring it could do harm. */
export const NotYet = z.unknown().optional().openapi({ description: "Not supported yet: refused unless empty." });

/** Errors: invalid, when the value asks for something. */
export function refuseNotYet(field: string, value: unknown): void {
  if (!isEmpty(value)) throw new AenvError("invalid", `${field} is not supported yet`, { field });
}

/** What a whole feature is wanted for that this server has not: E2B's word and status for it. Errors: forbidden. */
export function refuseNotEnabled(field: string, value: unknown): void {
  if (!isEmpty(value)) throw new AenvError("forbidden", `${field} is not enabled`, { field });
}

/** What clients send for "nothing": absent, null, "", [], {}. */
function isEmpty(value: unknown): boolean {
  if (value === undefined || value === null || value === "") return true;
  return typeof value === "object" && Object.keys(value).length === 0;
}
