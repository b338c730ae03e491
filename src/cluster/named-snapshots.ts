import {
  type BuildRecord,
  parseReference,
  type TemplateReference,
  type Templates,
  taggedBuild,
  wrongKind,
} from "#catalog";
import {
  AenvError,
  type Build,
  DEFAULT_TAG,
  type Node,
  newBuildId,
  type Sandbox,
  type SandboxId,
  type Snapshot,
  sandboxNotFound,
  type Template,
} from "#domain";
import { fault } from "#lib/fault";
import type { Logger } from "#lib/log";
import type { SnapshotFilter, SnapshotOptions, SnapshotView } from "./cluster.ts";
import type { Holds } from "./holds.ts";

/** Captured sandboxes as templates of their own kind: each capture a build, under a tag of a named template or under
 *  `default` of one without a name. */
export class NamedSnapshots {
  readonly #node: Node;
  readonly #templates: Templates;
  readonly #logger: Logger;
  readonly #holds: Holds;

  /** What is held is not collected. */
  constructor(deps: {
    readonly node: Node;
    readonly templates: Templates;
    readonly logger: Logger;
    readonly holds: Holds;
  }) {
    this.#node = deps.node;
    this.#templates = deps.templates;
    this.#logger = deps.logger;
    this.#holds = deps.holds;
  }

  /** First the bytes, then the build, then the tag: whoever sees the tag finds a snapshot behind it. */
  async create(id: SandboxId, { name, capture }: SnapshotOptions): Promise<SnapshotView> {
    const reference = name === undefined ? undefined : parseReference(name, "name");
    if (reference !== undefined) await this.#requireOurs(reference);
    const sandbox = this.#node.get(id);
    if (sandbox === undefined) throw sandboxNotFound(id);
    const { env } = await this.#startedFrom(sandbox);
    const snapshot = await this.#node.snapshot(id, env, capture);
    // Until its tag is there it looks as dead as what nothing points to any more.
    const letGo = this.#holds.take(snapshot.id);
    try {
      return await this.#publish(snapshot, reference);
    } catch (error) {
      await this.#node
        .deleteSnapshot(snapshot.id)
        .catch((undoing: unknown) =>
          this.#logger.warn("an unpublished snapshot stays until the next start", { sandboxId: id, error: undoing }),
        );
      throw error;
    } finally {
      letGo();
    }
  }

  /** One for each template, in no order: the newest of its tagged builds that the filter lets through. */
  async list(filter: SnapshotFilter): Promise<SnapshotView[]> {
    const reference = filter.name === undefined ? undefined : parseReference(filter.name, "name");
    const templates = await this.#candidates(reference);
    if (templates.length === 0) return [];
    const builds =
      templates.length === 1 ? await this.#templates.builds(templates[0]?.id) : await this.#templates.builds();
    const byTemplate = Map.groupBy(builds, ({ templateId }) => templateId);
    return templates.flatMap((template) => {
      const found = (byTemplate.get(template.id) ?? []).flatMap(
        (build) => viewOf(template, build, reference?.tag) ?? [],
      );
      return (
        found.find(({ snapshot }) => filter.sandboxId === undefined || snapshot.sandboxId === filter.sandboxId) ?? []
      );
    });
  }

  async #candidates(reference: TemplateReference | undefined): Promise<Template[]> {
    const found =
      reference === undefined
        ? await this.#templates.list()
        : [(await this.#templates.find(reference.name)) ?? []].flat();
    return found.filter(({ kind }) => kind === "snapshot");
  }

  async #requireOurs({ name }: TemplateReference): Promise<void> {
    const template = await this.#templates.find(name);
    if (template !== undefined && template.kind !== "snapshot") throw wrongKind(name, template);
  }

  /** It is kept as long as a sandbox that was started from it is there. */
  async #startedFrom({ id, snapshotId, spec }: Sandbox): Promise<Snapshot> {
    const builds = await this.#templates.builds(spec.templateId);
    const snapshot = builds.find((build) => build.snapshot?.id === snapshotId)?.snapshot;
    if (snapshot !== undefined) return snapshot;
    if (this.#node.get(id) === undefined) throw sandboxNotFound(id);
    throw new AenvError("internal", `no build has the snapshot ${snapshotId} that sandbox "${id}" was started from`);
  }

  async #publish(snapshot: Snapshot, reference: TemplateReference | undefined): Promise<SnapshotView> {
    const template =
      reference === undefined
        ? await this.#templates.addUnnamedSnapshot()
        : await this.#templates.claim(reference.name, "snapshot");
    const { resources, createdAtMs } = snapshot;
    const tags = [reference?.tag ?? DEFAULT_TAG];
    const build: BuildRecord = {
      ...{ id: newBuildId(), templateId: template.id, status: "ready", resources, tags, snapshot },
      ...{ createdAtMs, finishedAtMs: createdAtMs },
    };
    try {
      await this.#templates.addBuild(build);
      await fault("snapshot.named");
      if (!(await this.#templates.publish(build))) {
        throw new AenvError("conflict", `snapshot '${reference?.name ?? template.id}' was deleted while it was made`);
      }
    } catch (error) {
      await this.#unpublish(build);
      throw error;
    }
    return { template: { ...template, buildCount: template.buildCount + 1 }, build, snapshot, tags };
  }

  async #unpublish(build: Build): Promise<void> {
    try {
      await this.#templates.removeBuild(build);
      await this.#templates.removeIfHollow(build.templateId);
    } catch (error) {
      this.#logger.warn("the record of a snapshot that failed stays until the next start", {
        buildId: build.id,
        error,
      });
    }
  }
}

/** undefined: no tag, or not this one, points to the build. */
function viewOf(template: Template, build: Build, tag: string | undefined): SnapshotView | undefined {
  const { snapshot } = build;
  const tags = Object.keys(template.tags).filter((each) => template.tags[each] === build.id);
  if (snapshot === undefined || tags.length === 0) return undefined;
  if (tag === undefined) return { template, build, snapshot, tags: defaultFirst(tags) };
  return taggedBuild(template, tag) === build.id ? { template, build, snapshot, tags: [tag] } : undefined;
}

function defaultFirst(tags: readonly string[]): string[] {
  return [...tags].sort((a, b) => Number(b === DEFAULT_TAG) - Number(a === DEFAULT_TAG));
}
