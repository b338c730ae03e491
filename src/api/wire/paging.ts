import { z } from "@hono/zod-openapi";
import { AenvError } from "#domain";

/** Query fields of a paged list. */
export const PageQuery = z.object({
  limit: z.coerce.number().int().min(1).max(100).default(100),
  nextToken: z.string().optional().openapi({ description: "The X-Next-Token of the page before." }),
});

export interface PageRequest {
  readonly limit: number;
  readonly nextToken?: string | undefined;
  readonly order?: "asc" | "desc" | undefined;
}

/** Where an item stands in a list: by time, then by id, so that no two stand at the same place. */
export interface Position {
  readonly atMs: number;
  readonly id: string;
}

/**
 * A page of `items`, newest first unless asked otherwise. The token names the last item shown, not a number of items, so
 * what is added or removed meanwhile neither repeats nor hides others. Errors: invalid (`nextToken`).
 */
export function page<T>(
  items: readonly T[],
  position: (item: T) => Position,
  request: PageRequest,
): { readonly items: T[]; readonly nextToken?: string } {
  const sign = request.order === "asc" ? 1 : -1;
  const after = request.nextToken ? decodeToken(request.nextToken) : undefined;
  const sorted = items
    .map((item) => ({ item, at: position(item) }))
    .sort((a, b) => sign * compare(a.at, b.at))
    .filter(({ at }) => after === undefined || sign * compare(at, after) > 0);
  const shown = sorted.slice(0, request.limit);
  const last = shown.at(-1);
  const more = last !== undefined && sorted.length > shown.length;
  return { items: shown.map(({ item }) => item), ...(more ? { nextToken: encodeToken(last.at) } : {}) };
}

/** The header that leads to the next page; none on the last one. */
export function nextTokenHeader(nextToken: string | undefined): Record<string, string> {
  return nextToken === undefined ? {} : { "X-Next-Token": nextToken };
}

function compare(a: Position, b: Position): number {
  return a.atMs - b.atMs || (a.id < b.id ? -1 : a.id > b.id ? 1 : 0);
}

function encodeToken({ atMs, id }: Position): string {
  return Buffer.from(`${atMs}.${id}`).toString("base64url");
}

function decodeToken(token: string): Position {
  const match = /^(\d{1,16})\.([a-z0-9-]{1,64})$/.exec(Buffer.from(token, "base64url").toString());
  if (match === null) {
    throw new AenvError("invalid", "nextToken is none that this server gave", { field: "nextToken" });
  }
  return { atMs: Number(match[1]), id: match[2] ?? "" };
}
