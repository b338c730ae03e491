import { AenvError, DEFAULT_TAG } from "#domain";

/** The one team of this server. Its slug may stand before a template's name. */
export const TEAM = { id: "7a4c1d0e-5b5b-4e0a-9d53-2f6c3f0a9c11", name: "default", slug: "default" } as const;

/** `[team/]name[:tag]`, lower-cased, as a user writes it where a template is asked for or named. */
export interface TemplateReference {
  /** A template's name or its id. */
  readonly name: string;
  /** Absent: none was written. */
  readonly tag?: string;
}

const NAME = /^[a-z0-9_-]{1,128}$/;
const TAG = /^[a-z0-9._-]{1,128}$/;
const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

/** `field` is the request field the text came from. Errors: invalid. */
export function parseReference(text: string, field: string): TemplateReference {
  const clean = text.trim().toLowerCase();
  const slash = clean.indexOf("/");
  const team = slash < 0 ? undefined : clean.slice(0, slash);
  if (team !== undefined && team !== TEAM.slug) {
    throw new AenvError("invalid", `${field}: namespace '${team}' is not yours ('${TEAM.slug}')`, { field });
  }
  const [name = "", tag, ...rest] = clean.slice(slash + 1).split(":");
  if (!NAME.test(name) || rest.length > 0) {
    throw new AenvError(
      "invalid",
      `${field}: '${text}' is not a template name; a name is [a-z0-9_-], then maybe :tag`,
      {
        field,
      },
    );
  }
  return tag === undefined ? { name } : { name, tag: parseTag(tag, field) };
}

/** Errors: invalid (also for what looks like a build id). */
export function parseTag(text: string, field: string): string {
  const tag = text.trim().toLowerCase();
  if (!TAG.test(tag) || UUID.test(tag)) {
    throw new AenvError("invalid", `${field}: '${text}' is not a tag; a tag is [a-z0-9._-] and no UUID`, { field });
  }
  return tag;
}

/** The tags a new build gets: the one in its name, the asked ones, or `default`; each once. */
export function buildTags(reference: TemplateReference, asked: readonly string[]): string[] {
  const tags = [...(reference.tag === undefined ? [] : [reference.tag]), ...asked];
  return tags.length === 0 ? [DEFAULT_TAG] : [...new Set(tags)];
}
