import { z } from "@hono/zod-openapi";
import type { Sandbox, Snapshot } from "#domain";

const SnapshotRef = z
  .string()
  .openapi({ description: "Of a captured state; never used twice. Not what a create takes." });

export const SandboxLineage = z
  .object({
    snapshot: SnapshotRef.openapi({
      description: "The captured state that it was started from; a fork's is its source's.",
    }),
    forkedFrom: z.string().optional().openapi({ description: "The sandbox that it is a fork of, which may be gone." }),
  })
  .openapi("SandboxLineage", { description: "Ours: where it comes from." });

export const SnapshotLineage = z
  .object({
    snapshot: SnapshotRef,
    parent: z.string().optional().openapi({
      description: "The captured state that the captured sandbox was started from, which may be gone; none: a build's.",
    }),
    sandboxID: z.string().optional().openapi({ description: "The sandbox that was captured, which may be gone." }),
  })
  .openapi("SnapshotLineage", { description: "Ours: where it comes from." });

export function toSandboxLineage({ snapshotId, forkedFrom }: Sandbox): z.output<typeof SandboxLineage> {
  return { snapshot: snapshotId, ...(forkedFrom !== undefined && { forkedFrom }) };
}

export function toSnapshotLineage({ id, parentId, sandboxId }: Snapshot): z.output<typeof SnapshotLineage> {
  return {
    snapshot: id,
    ...(parentId !== undefined && { parent: parentId }),
    ...(sandboxId !== undefined && { sandboxID: sandboxId }),
  };
}
