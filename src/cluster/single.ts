import {
  type BuildRecord,
  parseReference,
  type Resolved,
  type Templates,
  taggedBuild,
  tagNotFound,
  templateNotFound,
} from "#catalog";
import {
  AenvError,
  type ForkResult,
  type LogEntry,
  type LogQuery,
  type MachineCapture,
  type Metric,
  type MetricQuery,
  type Node,
  type NodeStats,
  type ResumeOptions,
  type Sandbox,
  type SandboxId,
  type SandboxSpec,
  sandboxNotFound,
  type Template,
} from "#domain";
import type { Logger } from "#lib/log";
import type { Cluster, CreateRequest, SnapshotFilter, SnapshotOptions, SnapshotView, TemplateView } from "./cluster.ts";
import { Holds } from "./holds.ts";
import { NamedSnapshots } from "./named-snapshots.ts";

/** Records of finished builds kept for each template, newest first; older ones and their logs go. */
const BUILDS_KEPT = 50;

/** A cluster of one node. */
export class SingleNodeCluster implements Cluster {
  readonly #node: Node;
  readonly #templates: Templates;
  readonly #logger: Logger;
  /** Templates and snapshots that creates under way start from, and snapshots being published: neither deleted nor
   *  collected. */
  readonly #holds = new Holds();
  readonly #snapshots: NamedSnapshots;

  constructor(deps: { readonly node: Node; readonly templates: Templates; readonly logger: Logger }) {
    this.#node = deps.node;
    this.#templates = deps.templates;
    this.#logger = deps.logger;
    this.#snapshots = new NamedSnapshots({ ...deps, holds: this.#holds });
  }

  async create(request: CreateRequest): Promise<Sandbox> {
    const { resolved, release } = await this.#hold(request.template);
    try {
      const sandbox = await this.#node.create(specOf(request, resolved), resolved.snapshot);
      await this.#count(resolved.template.id);
      return sandbox;
    } finally {
      release();
    }
  }

  async get(id: SandboxId): Promise<Sandbox> {
    const sandbox = this.#node.get(id);
    if (sandbox === undefined || !isVisible(sandbox)) throw sandboxNotFound(id);
    return sandbox;
  }

  async list(): Promise<Sandbox[]> {
    return this.#node.list().filter(isVisible);
  }

  kill(id: SandboxId): Promise<void> {
    return this.#node.kill(id);
  }
  pause(id: SandboxId, capture?: MachineCapture): Promise<void> {
    return this.#node.pause(id, capture);
  }
  connect(id: SandboxId, timeoutMs?: number, options?: ResumeOptions): Promise<{ sandbox: Sandbox; resumed: boolean }> {
    return this.#node.connect(id, timeoutMs, options);
  }
  resume(id: SandboxId, timeoutMs?: number, options?: ResumeOptions): Promise<Sandbox> {
    return this.#node.resume(id, timeoutMs, options);
  }
  setTimeout(id: SandboxId, timeoutMs: number): Promise<void> {
    return this.#node.setTimeout(id, timeoutMs);
  }
  extendTimeout(id: SandboxId, timeoutMs: number): Promise<void> {
    return this.#node.extendTimeout(id, timeoutMs);
  }
  fork(id: SandboxId, count: number, timeoutMs?: number): Promise<ForkResult[]> {
    return this.#node.fork(id, count, timeoutMs);
  }

  async createSnapshot(id: SandboxId, options: SnapshotOptions = {}): Promise<SnapshotView> {
    const made = await this.#snapshots.create(id, options);
    // Without a name nothing was replaced.
    if (options.name !== undefined) {
      await this.collect().catch((error: unknown) => this.#logger.warn("replaced snapshots stay for now", { error }));
    }
    return made;
  }

  listSnapshots(filter: SnapshotFilter): Promise<SnapshotView[]> {
    return this.#snapshots.list(filter);
  }

  metrics(id: SandboxId, query: MetricQuery): Promise<Metric[]> {
    return this.#node.metrics(id, query);
  }
  latestMetrics(ids: readonly SandboxId[]): Promise<Map<SandboxId, Metric>> {
    return this.#node.latestMetrics(ids);
  }
  logs(id: SandboxId, query: LogQuery): Promise<LogEntry[]> {
    return this.#node.logs(id, query);
  }

  async listTemplates(): Promise<TemplateView[]> {
    const [templates, builds] = await Promise.all([this.#templates.list(), this.#templates.builds()]);
    const byTemplate = Map.groupBy(builds, ({ templateId }) => templateId);
    return templates
      .filter(({ kind }) => kind !== "snapshot")
      .map((template) => ({ template, builds: byTemplate.get(template.id) ?? [] }));
  }

  async template(reference: string): Promise<TemplateView> {
    const template = await this.lookUp(reference);
    return { template, builds: await this.#templates.builds(template.id) };
  }

  async lookUp(text: string): Promise<Template> {
    const { name, tag } = parseReference(text, "template");
    const template = await this.#templates.find(name);
    if (template === undefined) throw templateNotFound(text);
    if (tag !== undefined && taggedBuild(template, tag) === undefined) throw tagNotFound(tag, name);
    return template;
  }

  async deleteTemplate(reference: string): Promise<Template> {
    const template = await this.lookUp(reference);
    const { tag } = parseReference(reference, "template");
    if (tag !== undefined && Object.keys(template.tags).length > 1) {
      if (template.kind === "snapshot") return await this.#deleteTag(template, tag, reference);
      throw new AenvError("invalid", `template '${reference}' has other tags too`, {
        hint: "delete it by its name alone, or remove the tag with DELETE /templates/tags",
      });
    }
    const users = this.#node.list().filter(({ spec }) => spec.templateId === template.id).length;
    requireUnused(reference, users + this.#holds.count(template.id));
    if (!(await this.#templates.remove(template))) throw templateNotFound(reference);
    await this.collect();
    return template;
  }

  assignTags(target: string, tags: readonly string[]): Promise<string> {
    return this.#templates.assignTags(target, tags);
  }

  async removeTags(name: string, tags: readonly string[]): Promise<void> {
    await this.#templates.removeTags(name, tags);
    await this.collect();
  }

  async collect(): Promise<void> {
    const alive = new Set((await this.#templates.list()).map(({ id }) => id));
    const dead = await this.#templates.deadBuilds();
    const seen = new Map<string, number>();
    for (const build of dead) {
      const running = build.status === "waiting" || build.status === "building";
      if (alive.has(build.templateId) && running) continue;
      const newer = seen.get(build.templateId) ?? 0;
      seen.set(build.templateId, newer + 1);
      if (build.status === "building") continue; // its builder notices that the template is gone
      const keepRecord = alive.has(build.templateId) && newer < BUILDS_KEPT;
      await this.#collectBuild(build, keepRecord);
    }
  }

  async stats(): Promise<NodeStats> {
    return this.#node.stats();
  }

  /** Takes one of several tags from a snapshot, and so what only that tag stands for. */
  async #deleteTag(template: Template, tag: string, reference: string): Promise<Template> {
    const buildId = taggedBuild(template, tag) ?? "";
    const isLast = Object.values(template.tags).filter((id) => id === buildId).length === 1;
    const snapshotId = (await this.#templates.build(template.id, buildId))?.snapshot?.id;
    if (isLast && snapshotId !== undefined) requireUnused(reference, this.#users(snapshotId));
    if (!(await this.#templates.removeSnapshotTag(template.id, tag))) throw tagNotFound(tag, reference);
    await this.collect();
    return template;
  }

  /** Sandboxes started from a snapshot, and creates and publications under way. */
  #users(snapshotId: string): number {
    const started = this.#node.list().filter((sandbox) => sandbox.snapshotId === snapshotId).length;
    return started + this.#holds.count(snapshotId);
  }

  async #collectBuild(build: BuildRecord, keepRecord: boolean): Promise<void> {
    const { snapshot } = build;
    if (snapshot !== undefined) {
      // A create that took hold of it before it was dead is counted in #holds; one that comes now resolves again.
      if (this.#users(snapshot.id) > 0) return;
      try {
        await this.#node.deleteSnapshot(snapshot.id);
      } catch (error) {
        this.#logger.warn("a dead snapshot stays", { buildId: build.id, templateId: build.templateId, error });
        return;
      }
      if (keepRecord) await this.#templates.updateBuild(build, ({ snapshot: _, ...rest }) => rest);
    }
    if (!keepRecord) await this.#templates.removeBuild(build);
  }

  /** Resolves and holds. Looked up again after the hold is taken: what is dead by then may already be going. */
  async #hold(reference: string): Promise<{ resolved: Resolved; release: () => void }> {
    let resolved = await this.#templates.resolve(reference);
    for (;;) {
      const release = this.#holds.take(resolved.template.id, resolved.snapshot.id);
      try {
        const again = await this.#templates.resolve(reference);
        if (again.snapshot.id === resolved.snapshot.id) return { resolved, release };
        resolved = again;
      } catch (error) {
        release();
        throw error;
      }
      release();
    }
  }

  async #count(templateId: string): Promise<void> {
    try {
      await this.#templates.countSpawn(templateId);
    } catch (error) {
      // The sandbox is there: a count that is off by one is no reason to take it away.
      this.#logger.warn("spawn not counted", { templateId, error });
    }
  }
}

function requireUnused(reference: string, users: number): void {
  if (users === 0) return;
  throw new AenvError("invalid", `template '${reference}' is used by ${users} sandboxes, paused ones included`, {
    hint: "end them first",
  });
}

function specOf(request: CreateRequest, { template, snapshot, alias }: Resolved): SandboxSpec {
  const { template: _, env, ...asked } = request;
  return {
    ...asked,
    templateId: template.id,
    ...(alias === undefined ? {} : { alias }),
    resources: snapshot.resources,
    env: { ...snapshot.env, ...env },
    defaultUser: snapshot.defaultUser,
    ...(snapshot.defaultWorkdir === undefined ? {} : { defaultWorkdir: snapshot.defaultWorkdir }),
  };
}

function isVisible(sandbox: Sandbox): boolean {
  return sandbox.state !== "creating" && sandbox.state !== "killing";
}
