import {
  AenvError,
  type Build,
  type BuildLogEntry,
  DEFAULT_TAG,
  newTemplateId,
  type Snapshot,
  type Template,
  type TemplateKind,
} from "#domain";
import { KeyedMutex } from "#lib/mutex";
import { type Catalog, recordKind, updateRecord } from "./catalog.ts";
import { parseReference } from "./reference.ts";

/** A build as it is stored: with the tags that will point to it once it is ready. */
export interface BuildRecord extends Build {
  readonly tags: readonly string[];
}

/** What a template reference stands for. */
export interface Resolved {
  readonly template: Template;
  readonly build: BuildRecord;
  readonly snapshot: Snapshot;
  /** The name it was asked by, else its first. */
  readonly alias: string | undefined;
}

const TEMPLATE = recordKind<Template>("template", ["id", "names", "tags"]);
const NAME = recordKind<{ readonly templateId: string }>("template-name", ["templateId"]);
/** Key: template id, slash, build id. */
const BUILD = recordKind<BuildRecord>("build", ["id", "templateId", "status", "tags"]);
/** Key as a build's. */
const LOG = recordKind<readonly BuildLogEntry[]>("build-log", ["length"]);

/**
 * The records of templates: names point to templates, a template's tags to builds, a ready build to one snapshot. A
 * build no tag points to is dead: nothing can point to it again. What a crash leaves half written is never found by name;
 * `removeOrphans` clears it away.
 */
export class Templates {
  readonly #catalog: Catalog;
  readonly #nowMs: () => number;
  readonly #writing = new KeyedMutex();

  constructor(catalog: Catalog, nowMs: () => number) {
    this.#catalog = catalog;
    this.#nowMs = nowMs;
  }

  /** The snapshot behind `name[:tag]` or an id. Errors: invalid (`templateID`), not-found (template or tag). */
  async resolve(text: string): Promise<Resolved> {
    const reference = parseReference(text, "templateID");
    const template = await this.find(reference.name);
    if (template === undefined) throw templateNotFound(text);
    const tag = reference.tag ?? DEFAULT_TAG;
    const buildId = taggedBuild(template, tag);
    const build = buildId === undefined ? undefined : await this.build(template.id, buildId);
    if (build?.snapshot === undefined) throw tagNotFound(tag, reference.name);
    const alias = template.names.includes(reference.name) ? reference.name : template.names[0];
    return { template, build, snapshot: build.snapshot, alias };
  }

  /** By name or id, without a tag. */
  async find(nameOrId: string): Promise<Template | undefined> {
    const name = await this.#catalog.get(NAME, nameOrId);
    return (name && (await this.#get(name.value.templateId))) ?? (await this.#get(nameOrId));
  }

  /** Newest first. */
  async list(): Promise<Template[]> {
    const records = await this.#catalog.list(TEMPLATE);
    return records.map(({ value }) => value).sort((a, b) => b.createdAtMs - a.createdAtMs || (a.id < b.id ? 1 : -1));
  }

  /** The template of this kind that has this name, made if there is none. Errors: invalid (it is an id), conflict (a template
   *  of another kind has it). */
  async claim(name: string, kind?: TemplateKind): Promise<Template> {
    for (;;) {
      const claimed = await this.#catalog.get(NAME, name);
      const existing = claimed && (await this.#get(claimed.value.templateId));
      if (existing !== undefined && existing.kind !== kind) throw wrongKind(name, existing);
      if (existing !== undefined) return existing;
      if ((await this.#get(name)) !== undefined) {
        throw new AenvError("invalid", `name: '${name}' is the id of a template`, { field: "name" });
      }
      const template = newTemplate([name], kind, this.#nowMs());
      await this.#catalog.put(TEMPLATE, template.id, template);
      const options = { ifRevision: claimed?.revision ?? 0, durable: true };
      const won = await this.#catalog.put(NAME, name, { templateId: template.id }, options);
      if (won !== undefined) return template;
      await this.#catalog.delete(TEMPLATE, template.id);
    }
  }

  /** A template for one captured sandbox that nobody has given a name. */
  async addUnnamedSnapshot(): Promise<Template> {
    const template = newTemplate([], "snapshot", this.#nowMs());
    await this.#catalog.put(TEMPLATE, template.id, template);
    return template;
  }

  async build(templateId: string, buildId: string): Promise<BuildRecord | undefined> {
    return (await this.#catalog.get(BUILD, `${templateId}/${buildId}`))?.value;
  }

  /** Of one template, or all; newest first. */
  async builds(templateId?: string): Promise<BuildRecord[]> {
    const records = await this.#catalog.list(BUILD, templateId === undefined ? {} : { prefix: `${templateId}/` });
    return records.map(({ value }) => value).sort((a, b) => b.createdAtMs - a.createdAtMs || (a.id < b.id ? 1 : -1));
  }

  async addBuild(build: BuildRecord): Promise<void> {
    await this.#catalog.put(BUILD, buildKey(build), build, { ifRevision: 0 });
    await this.#update(build.templateId, (template) => ({ ...template, buildCount: template.buildCount + 1 }));
  }

  /** undefined: the build is gone. What `change` throws is thrown. */
  async updateBuild(build: Build, change: (current: BuildRecord) => BuildRecord): Promise<BuildRecord | undefined> {
    return this.#writing.run(build.id, () =>
      updateRecord(this.#catalog, BUILD, buildKey(build), change, { durable: true }),
    );
  }

  async removeBuild(build: Build): Promise<void> {
    await this.#catalog.delete(LOG, buildKey(build));
    await this.#catalog.delete(BUILD, buildKey(build));
  }

  async log(build: Build): Promise<readonly BuildLogEntry[]> {
    return (await this.#catalog.get(LOG, buildKey(build)))?.value ?? [];
  }

  async putLog(build: Build, entries: readonly BuildLogEntry[]): Promise<void> {
    await this.#catalog.put(LOG, buildKey(build), entries);
  }

  /** Points the build's tags to it. False: the template is gone. */
  async publish(build: BuildRecord): Promise<boolean> {
    const pointers = Object.fromEntries(build.tags.map((tag) => [tag, build.id]));
    const published = await this.#update(build.templateId, (template) => this.#retag(template, pointers));
    return published !== undefined;
  }

  /** Points more tags to what `target` (`name[:tag]` or id) stands for. Errors: invalid, not-found. */
  async assignTags(target: string, tags: readonly string[]): Promise<string> {
    const { name, tag = DEFAULT_TAG } = parseReference(target, "target");
    const template = await this.find(name);
    let buildId: string | undefined;
    const changed =
      template &&
      (await this.#update(template.id, (current) => {
        buildId = taggedBuild(current, tag);
        if (buildId === undefined) throw tagNotFound(tag, name);
        return this.#retag(current, Object.fromEntries(tags.map((each) => [each, buildId ?? ""])));
      }));
    if (changed === undefined || buildId === undefined) throw templateNotFound(target);
    return buildId;
  }

  /** Errors: invalid (`default` stays, the name must have no tag), not-found (all tags stay then). */
  async removeTags(nameText: string, tags: readonly string[]): Promise<void> {
    const { name, tag: written } = parseReference(nameText, "name");
    if (written !== undefined) throw new AenvError("invalid", "name must have no tag", { field: "name" });
    if (tags.includes(DEFAULT_TAG)) {
      throw new AenvError("invalid", `tags: the tag '${DEFAULT_TAG}' cannot be removed`, { field: "tags" });
    }
    const template = await this.find(name);
    const changed =
      template &&
      (await this.#update(template.id, (current) => {
        const missing = tags.find((tag) => taggedBuild(current, tag) === undefined);
        if (missing !== undefined) throw tagNotFound(missing, name);
        return this.#untag(current, tags);
      }));
    if (changed === undefined) throw templateNotFound(nameText);
  }

  /** Takes a tag, `default` too, from a snapshot. False: it is not there, or is the last one. */
  async removeSnapshotTag(templateId: string, tag: string): Promise<boolean> {
    let removed = false;
    await this.#update(templateId, (current) => {
      removed = taggedBuild(current, tag) !== undefined && Object.keys(current.tags).length > 1;
      return removed ? this.#untag(current, [tag]) : current;
    });
    return removed;
  }

  async countSpawn(templateId: string): Promise<void> {
    const lastSpawnedAtMs = this.#nowMs();
    const change = (template: Template) => ({ ...template, spawnCount: template.spawnCount + 1, lastSpawnedAtMs });
    await this.#writing.run(templateId, () => updateRecord(this.#catalog, TEMPLATE, templateId, change));
  }

  /** Its builds stay, dead, for whoever still uses their snapshots. False: another was first. */
  async remove(template: Template): Promise<boolean> {
    const removed = await this.#writing.run(template.id, () =>
      this.#catalog.delete(TEMPLATE, template.id, { durable: true }),
    );
    for (const name of template.names) await this.#releaseName(name, template.id);
    return removed;
  }

  /** Removes a snapshot's template to which nothing has been captured. */
  async removeIfHollow(templateId: string): Promise<void> {
    const template = await this.#get(templateId);
    if (template !== undefined && isHollow(template)) await this.remove(template);
  }

  /** Builds that no tag points to, of one template or all. */
  async deadBuilds(templateId?: string): Promise<BuildRecord[]> {
    // Builds first: one that is published in between is then seen with its tag.
    const builds = await this.builds(templateId);
    const templates = new Map<string, Template | undefined>();
    for (const { templateId: id } of builds) if (!templates.has(id)) templates.set(id, await this.#get(id));
    return builds.filter(({ id, templateId: of }) => !Object.values(templates.get(of)?.tags ?? {}).includes(id));
  }

  /** Clears what a crash left of a claim or a removal. Call before the first request. */
  async removeOrphans(): Promise<void> {
    for (const { key, value } of await this.#catalog.list(NAME)) {
      if ((await this.#get(value.templateId)) === undefined) await this.#releaseName(key, value.templateId);
    }
    for (const template of await this.list()) {
      const owners = await Promise.all(template.names.map((name) => this.#catalog.get(NAME, name)));
      const named = owners.some((owner) => owner?.value.templateId === template.id);
      if (isHollow(template) || (!named && Object.keys(template.tags).length === 0)) await this.remove(template);
    }
  }

  async #get(templateId: string): Promise<Template | undefined> {
    return (await this.#catalog.get(TEMPLATE, templateId))?.value;
  }

  async #update(templateId: string, change: (template: Template) => Template): Promise<Template | undefined> {
    return this.#writing.run(templateId, () =>
      updateRecord(this.#catalog, TEMPLATE, templateId, change, { durable: true }),
    );
  }

  /** Errors: invalid, where nothing of a snapshot would be left. */
  #untag(template: Template, tags: readonly string[]): Template {
    const kept = Object.entries(template.tags).filter(([tag]) => !tags.includes(tag));
    if (template.kind === "snapshot" && kept.length === 0) {
      throw new AenvError("invalid", "tags: the last tag of a snapshot cannot be removed", {
        field: "tags",
        hint: `delete the snapshot: DELETE /templates/${template.id}`,
      });
    }
    return { ...template, tags: Object.fromEntries(kept), updatedAtMs: this.#nowMs() };
  }

  #retag(template: Template, pointers: Readonly<Record<string, string>>): Template {
    return { ...template, tags: { ...template.tags, ...pointers }, updatedAtMs: this.#nowMs() };
  }

  async #releaseName(name: string, templateId: string): Promise<void> {
    const record = await this.#catalog.get(NAME, name);
    if (record?.value.templateId !== templateId) return;
    await this.#catalog.delete(NAME, name, { ifRevision: record.revision });
  }
}

function newTemplate(names: readonly string[], kind: TemplateKind | undefined, nowMs: number): Template {
  const counts = { spawnCount: 0, buildCount: 0 };
  const times = { createdAtMs: nowMs, updatedAtMs: nowMs };
  const ofKind = kind === undefined ? {} : { kind };
  return { id: newTemplateId(), ...ofKind, names, tags: {}, public: false, ...counts, ...times };
}

/** A snapshot's template is made after the capture: without a tag it stands for nothing, and for nothing to come. */
function isHollow({ kind, tags }: Template): boolean {
  return kind === "snapshot" && Object.keys(tags).length === 0;
}

/** The build a tag points to. Tags are the users' words: `constructor` is one. */
export function taggedBuild(template: Template, tag: string): string | undefined {
  return Object.hasOwn(template.tags, tag) ? template.tags[tag] : undefined;
}

function buildKey(build: Pick<Build, "id" | "templateId">): string {
  return `${build.templateId}/${build.id}`;
}

/** A name is that of a template or of a snapshot, never of both. */
export function wrongKind(name: string, { kind }: Template): AenvError {
  const what = kind === "snapshot" ? "a snapshot, which no build replaces" : "a template, which no snapshot replaces";
  return new AenvError("conflict", `name: '${name}' is the name of ${what}`, {
    field: "name",
    hint: "take another name, or delete it first",
  });
}

export function templateNotFound(text: string): AenvError {
  return new AenvError("not-found", `template '${text}' not found`);
}

export function tagNotFound(tag: string, template: string): AenvError {
  return new AenvError("not-found", `tag '${tag}' does not exist for template '${template}'`);
}
