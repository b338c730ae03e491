import { z } from "@hono/zod-openapi";
import { jsonBody } from "../body.ts";
import { ErrorBody } from "../errors.ts";

/** A JSON answer of a route's description. */
export function json<S extends z.ZodType>(schema: S, description: string) {
  return { description, content: { "application/json": { schema } } };
}

const MEANING = {
  400: "The request is wrong; the message names the field.",
  401: "No key, or a wrong one.",
  404: "There is no such thing.",
  409: "Its state does not allow this.",
  413: "The body is too large.",
  429: "A limit is reached; see Retry-After.",
  500: "A defect of the server; its log has more.",
  503: "A part that is needed is not there now.",
  504: "It took too long.",
} as const;

type ErrorStatus = keyof typeof MEANING;
type ErrorAnswer = ReturnType<typeof json<typeof ErrorBody>>;

/** The error answers of a route with a key: the ones named, 401 and 500. */
export function errors<S extends ErrorStatus>(...statuses: S[]): Record<S | 401 | 500, ErrorAnswer> {
  const answers = [...statuses, 401 as const, 500 as const].map((status) => [status, json(ErrorBody, MEANING[status])]);
  return Object.fromEntries(answers) as Record<S | 401 | 500, ErrorAnswer>;
}

/** A route's JSON body and what reads it. */
export function takes<S extends z.ZodType>(schema: S) {
  return { content: { "application/json": { schema } }, required: true } as const;
}
/** As `takes`, where an empty body stands for `{}`. */
export function mayTake<S extends z.ZodType>(schema: S) {
  return { content: { "application/json": { schema } }, required: false } as const;
}
export { jsonBody };

/** Older clients append `-<clientID>`. */
export function sandboxIdOf(text: string): string {
  return text.split("-")[0] ?? "";
}

export const SandboxParam = z.object({
  sandboxID: z
    .string()
    .transform(sandboxIdOf)
    .openapi({ param: { name: "sandboxID", in: "path" }, type: "string" }),
});

export const TemplateParam = z.object({
  templateID: z.string().openapi({
    param: { name: "templateID", in: "path" },
    description: "A template's id or name; as one path segment, so `/` and `:` are URL-encoded.",
  }),
});
