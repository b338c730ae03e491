import { z } from "@hono/zod-openapi";
import { MIB, type Sandbox } from "#domain";
import { SandboxLineage, toSandboxLineage } from "./lineage.ts";

/**
 * Required on the wire and without a meaning for many years. Not empty: older SDKs build `<id>-<clientID>` as the
 * sandbox's name and its host from it, and a host label must not end in a dash.
 */
const CLIENT_ID = "00000000";

const identity = {
  templateID: z.string(),
  sandboxID: z.string(),
  clientID: z.string(),
  envdVersion: z.string(),
  alias: z.string().optional(),
};

export const SandboxBody = z
  .object({
    ...identity,
    envdAccessToken: z.string().optional(),
    trafficAccessToken: z.string().nullable(),
    domain: z.string().nullable(),
  })
  .openapi("Sandbox");

const listed = {
  ...identity,
  startedAt: z.iso.datetime(),
  endAt: z.iso.datetime(),
  state: z.enum(["running", "paused"]),
  cpuCount: z.number(),
  memoryMB: z.int(),
  diskSizeMB: z.int(),
  metadata: z.record(z.string(), z.string()),
  volumeMounts: z.array(z.object({ name: z.string(), path: z.string() })),
  lineage: SandboxLineage,
  removeAt: z.iso
    .datetime()
    .optional()
    .openapi({ description: "Of a paused one that this server does not keep for ever: when it is removed." }),
};

export const ListedSandbox = z.object(listed).openapi("ListedSandbox");

export const SandboxDetail = z
  .object({
    ...listed,
    envdAccessToken: z.string().optional(),
    domain: z.string().nullable(),
    allowInternetAccess: z.boolean(),
    network: z.object({ allowPublicTraffic: z.boolean(), maskRequestHost: z.string().optional() }),
    lifecycle: z.object({ autoResume: z.boolean(), onTimeout: z.enum(["kill", "pause"]) }),
  })
  .openapi("SandboxDetail");

export type WireState = "running" | "paused";

/** The wire's two states. What is being paused no longer answers, what is being resumed does not yet. */
export function wireState({ state }: Sandbox): WireState {
  return state === "pausing" || state === "paused" || state === "resuming" ? "paused" : "running";
}

export function toSandbox(sandbox: Sandbox, domain: string | null): z.output<typeof SandboxBody> {
  return { ...identityOf(sandbox), ...tokenOf(sandbox), trafficAccessToken: sandbox.trafficToken ?? null, domain };
}

export function toListed(sandbox: Sandbox): z.output<typeof ListedSandbox> {
  const { vcpus, memoryBytes, diskBytes } = sandbox.spec.resources;
  return {
    ...identityOf(sandbox),
    startedAt: new Date(sandbox.startedAtMs).toISOString(),
    endAt: new Date(sandbox.endAtMs).toISOString(),
    state: wireState(sandbox),
    cpuCount: vcpus,
    memoryMB: Math.round(memoryBytes / MIB),
    diskSizeMB: Math.round(diskBytes / MIB),
    metadata: { ...sandbox.spec.metadata },
    volumeMounts: [],
    lineage: toSandboxLineage(sandbox),
    ...(sandbox.removeAtMs !== undefined && { removeAt: new Date(sandbox.removeAtMs).toISOString() }),
  };
}

export function toDetail(sandbox: Sandbox, domain: string | null): z.output<typeof SandboxDetail> {
  const { network, traffic, autoResume, onTimeout } = sandbox.spec;
  return {
    ...toListed(sandbox),
    ...(wireState(sandbox) === "running" ? tokenOf(sandbox) : {}),
    domain,
    allowInternetAccess: network.internet,
    network: {
      allowPublicTraffic: traffic?.isPublic ?? true,
      ...(traffic?.maskHost !== undefined && { maskRequestHost: traffic.maskHost }),
    },
    lifecycle: { autoResume, onTimeout },
  };
}

function identityOf({ id, spec, envdVersion }: Sandbox) {
  const alias = spec.alias === undefined ? {} : { alias: spec.alias };
  return { templateID: spec.templateId, sandboxID: id, clientID: CLIENT_ID, envdVersion, ...alias };
}

function tokenOf({ accessToken }: Sandbox): { envdAccessToken?: string } {
  return accessToken === undefined ? {} : { envdAccessToken: accessToken };
}
