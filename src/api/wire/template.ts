import { z } from "@hono/zod-openapi";
import type { TemplateView } from "#cluster";
import { type Build, DEFAULT_RESOURCES, DEFAULT_TAG, MIB, type Resources, type Snapshot, type Template } from "#domain";
import { SnapshotLineage, toSnapshotLineage } from "./lineage.ts";

const times = { createdAt: z.iso.datetime(), updatedAt: z.iso.datetime() };
const sizes = { cpuCount: z.number(), memoryMB: z.int(), diskSizeMB: z.int() };
const named = {
  templateID: z.string(),
  public: z.boolean(),
  aliases: z.array(z.string()),
  names: z.array(z.string()),
  ...times,
  lastSpawnedAt: z.iso.datetime().nullable(),
  spawnCount: z.int(),
};
const BuildStatusName = z.enum(["waiting", "building", "ready", "error"]);

export const TemplateBody = z
  .object({
    ...named,
    buildID: z.string(),
    ...sizes,
    buildCount: z.int(),
    createdBy: z.object({ id: z.string(), email: z.string() }).nullable(),
    envdVersion: z.string(),
    buildStatus: BuildStatusName,
    lineage: SnapshotLineage.optional(),
  })
  .openapi("Template");

export const TemplateWithBuilds = z
  .object({
    ...named,
    builds: z.array(
      z.object({
        buildID: z.string(),
        status: BuildStatusName,
        ...times,
        finishedAt: z.iso.datetime().optional(),
        ...sizes,
        envdVersion: z.string().optional(),
        tags: z.array(z.string()).openapi({ description: "Ours: those that point to it." }),
        lineage: SnapshotLineage.optional(),
      }),
    ),
  })
  .openapi("TemplateWithBuilds");

export const TemplateAlias = z.object({ templateID: z.string(), public: z.boolean() }).openapi("TemplateAlias");

/** A template stands in a list with the build that `default` points to, or its newest. */
export function toTemplate({ template, builds }: TemplateView): z.output<typeof TemplateBody> {
  const build = builds.find(({ id }) => id === template.tags[DEFAULT_TAG]) ?? builds[0];
  return {
    ...namedOf(template),
    buildID: build?.id ?? "",
    ...sizesOf(build?.resources ?? DEFAULT_RESOURCES),
    buildCount: template.buildCount,
    createdBy: null,
    envdVersion: build?.snapshot?.envdVersion ?? "",
    buildStatus: build?.status ?? "waiting",
    ...lineageOf(build?.snapshot),
  };
}

export function toTemplateWithBuilds(
  template: Template,
  builds: readonly Build[],
): z.output<typeof TemplateWithBuilds> {
  return { ...namedOf(template), builds: builds.map((build) => buildOf(template, build)) };
}

function buildOf({ tags }: Template, build: Build): z.output<typeof TemplateWithBuilds>["builds"][number] {
  const { finishedAtMs, snapshot } = build;
  return {
    buildID: build.id,
    status: build.status,
    createdAt: iso(build.createdAtMs),
    updatedAt: iso(finishedAtMs ?? build.createdAtMs),
    ...(finishedAtMs === undefined ? {} : { finishedAt: iso(finishedAtMs) }),
    ...sizesOf(build.resources),
    ...(snapshot === undefined ? {} : { envdVersion: snapshot.envdVersion }),
    tags: Object.keys(tags).filter((tag) => tags[tag] === build.id),
    ...lineageOf(snapshot),
  };
}

function lineageOf(snapshot: Snapshot | undefined) {
  return snapshot === undefined ? {} : { lineage: toSnapshotLineage(snapshot) };
}

function namedOf(template: Template) {
  return {
    templateID: template.id,
    public: template.public,
    aliases: [...template.names],
    names: [...template.names],
    createdAt: iso(template.createdAtMs),
    updatedAt: iso(template.updatedAtMs),
    lastSpawnedAt: template.lastSpawnedAtMs === undefined ? null : iso(template.lastSpawnedAtMs),
    spawnCount: template.spawnCount,
  };
}

function sizesOf({ vcpus, memoryBytes, diskBytes }: Resources) {
  return { cpuCount: vcpus, memoryMB: Math.round(memoryBytes / MIB), diskSizeMB: Math.round(diskBytes / MIB) };
}

function iso(ms: number): string {
  return new Date(ms).toISOString();
}
