import { z } from "@hono/zod-openapi";
import { TEAM } from "#catalog";
import type { SnapshotView } from "#cluster";
import { MIB } from "#domain";
import { SnapshotLineage, toSnapshotLineage } from "./lineage.ts";
import { PageQuery, type Position } from "./paging.ts";

export const NewSnapshot = z
  .object({
    name: z.string().nullish().openapi({
      description: "`[team/]name[:tag]`: a new one, or in the place of what that tag stood for. Without it: by an id.",
    }),
    memory: z.boolean().nullish().openapi({
      description: "false: the files alone. Sandboxes created from it are booted.",
    }),
  })
  .openapi("NewSnapshot");

export const SnapshotQuery = PageQuery.extend({
  sandboxID: z.string().optional().openapi({ description: "Only those captured from this sandbox." }),
  name: z.string().optional().openapi({ description: "`[team/]name[:tag]`, or an id; without a tag, any." }),
});

export const SnapshotInfo = z
  .object({
    snapshotID: z.string().openapi({ description: "What a create takes as its templateID." }),
    names: z.array(z.string()),
    templateID: z.string(),
    buildID: z.string(),
    tags: z.array(z.string()).openapi({ description: "All that point to it." }),
    buildCount: z.int().openapi({ description: "How often its name or id was captured to." }),
    createdAt: z.iso.datetime(),
    cpuCount: z.number(),
    memoryMB: z.int(),
    diskSizeMB: z.int(),
    memory: z.boolean().openapi({ description: "false: it holds the files alone." }),
    sizeBytes: z.int().openapi({ description: "Of its files; what they share with others counts for each." }),
    lineage: SnapshotLineage,
  })
  .openapi("SnapshotInfo");

/** A named one is shown by its name and tag, another by its template's id and tag. */
export function toSnapshotInfo({ template, build, snapshot, tags }: SnapshotView): z.output<typeof SnapshotInfo> {
  const { vcpus, memoryBytes, diskBytes } = snapshot.resources;
  const names = template.names.map((name) => `${TEAM.slug}/${name}`);
  return {
    snapshotID: `${names[0] ?? template.id}:${tags[0]}`,
    names,
    templateID: template.id,
    buildID: build.id,
    tags: [...tags],
    buildCount: template.buildCount,
    createdAt: new Date(snapshot.createdAtMs).toISOString(),
    cpuCount: vcpus,
    memoryMB: Math.round(memoryBytes / MIB),
    diskSizeMB: Math.round(diskBytes / MIB),
    memory: snapshot.capture !== "disk",
    sizeBytes: snapshot.sizeBytes,
    lineage: toSnapshotLineage(snapshot),
  };
}

/** By its template, whose place a new capture under the same name does not change: no page shows it twice or leaves it out. */
export function positionOf({ template }: SnapshotView): Position {
  return { atMs: template.createdAtMs, id: template.id };
}
