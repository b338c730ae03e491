import { z } from "@hono/zod-openapi";
import { AenvError, type Sandbox } from "#domain";
import { PageQuery } from "./paging.ts";
import { type WireState, wireState } from "./sandbox.ts";

const Metadata = z
  .string()
  .optional()
  .openapi({ description: "`key=value&…`, keys and values URL-encoded, the whole encoded once more." });

export const ListQuery = z.object({ metadata: Metadata });

export const ListQueryV2 = PageQuery.extend({
  metadata: Metadata,
  state: z
    .union([z.string(), z.array(z.string())])
    .optional()
    .openapi({ description: "`running`, `paused` or both with a comma; both when left out." }),
  startedAfter: z.iso.datetime({ offset: true }).optional(),
  template: z.string().optional().openapi({ description: "A template's name or id." }),
  order: z.enum(["asc", "desc"]).optional().openapi({ description: "By start; newest first when left out." }),
});

/** What a listed sandbox has to be like; state apart, because running ones are counted without it. */
export interface SandboxFilter {
  readonly metadata: ReadonlyMap<string, string>;
  readonly startedAfterMs?: number;
  readonly templateId?: string;
}

export function matches(sandbox: Sandbox, filter: SandboxFilter): boolean {
  const { spec, startedAtMs } = sandbox;
  if (filter.templateId !== undefined && spec.templateId !== filter.templateId) return false;
  if (filter.startedAfterMs !== undefined && startedAtMs < filter.startedAfterMs) return false;
  return [...filter.metadata].every(
    ([key, value]) => Object.hasOwn(spec.metadata, key) && spec.metadata[key] === value,
  );
}

/** Errors: invalid (`state`). */
export function parseStates(text: string | readonly string[] | undefined): (sandbox: Sandbox) => boolean {
  const asked = [text ?? []].flat().flatMap((part) => part.split(",").filter((each) => each !== ""));
  const wrong = asked.find((state) => state !== "running" && state !== "paused");
  if (wrong !== undefined) {
    throw new AenvError("invalid", `state: '${wrong}' is neither running nor paused`, { field: "state" });
  }
  const wanted = new Set(asked.length === 0 ? ["running", "paused"] : asked) as ReadonlySet<WireState>;
  return (sandbox) => wanted.has(wireState(sandbox));
}

/**
 * SDKs encode each key and value, then the list of pairs, then the query. The query's own coding is undone already; this
 * undoes the other two. Errors: invalid (`metadata`).
 */
export function parseMetadata(text: string | undefined): ReadonlyMap<string, string> {
  const pairs = new Map<string, string>();
  try {
    for (const pair of decodeURIComponent(text ?? "").split("&")) {
      if (pair === "") continue;
      const at = pair.indexOf("=");
      const [key, value] = at < 0 ? [pair, ""] : [pair.slice(0, at), pair.slice(at + 1)];
      pairs.set(decodeURIComponent(key), decodeURIComponent(value));
    }
  } catch (cause) {
    throw new AenvError("invalid", "metadata is not well URL-encoded", { field: "metadata", cause });
  }
  return pairs;
}
