import { z } from "@hono/zod-openapi";
import type { BuildPlan, BuildView } from "#builder";
import { AenvError, type BuildLogEntry, DEFAULT_RESOURCES, type ImageSource, MIB, type Resources } from "#domain";
import { NotYet, refuseNotYet } from "./unsupported.ts";

export const NewTemplate = z
  .object({
    name: z.string().min(1).openapi({ description: "`name[:tag]`", example: "debian" }),
    tags: z.array(z.string()).max(100).nullish(),
    cpuCount: z.int().min(1).nullish(),
    memoryMB: z.int().min(128).nullish(),
    minFreeDiskMb: z.int().min(0).nullish(),
  })
  .openapi("TemplateBuildRequestV3");

export const NewTemplateAnswer = z
  .object({
    templateID: z.string(),
    buildID: z.string(),
    public: z.boolean(),
    names: z.array(z.string()),
    tags: z.array(z.string()),
    aliases: z.array(z.string()),
  })
  .openapi("TemplateRequestResponseV3");

/** What a template may ask for, at most. */
export interface ResourceLimits {
  readonly vcpus: number;
  readonly memoryBytes: number;
  readonly diskBytes: number;
}

/** Errors: invalid, in E2B's words. */
export function toResources(body: z.output<typeof NewTemplate>, limits: ResourceLimits): Resources {
  const vcpus = body.cpuCount ?? DEFAULT_RESOURCES.vcpus;
  const memoryMib = body.memoryMB ?? DEFAULT_RESOURCES.memoryBytes / MIB;
  const diskBytes = Math.max(DEFAULT_RESOURCES.diskBytes, (body.minFreeDiskMb ?? 0) * MIB);
  const refuse = (message: string): never => {
    throw new AenvError("invalid", message);
  };
  if (vcpus > limits.vcpus) refuse(`CPU count must be at most ${limits.vcpus} (cpuCount)`);
  if (vcpus > 1 && vcpus % 2 === 1) refuse("CPU count must be 1 or an even number (cpuCount)");
  if (memoryMib * MIB > limits.memoryBytes) {
    refuse(`Memory can't be higher than ${Math.floor(limits.memoryBytes / MIB)} MiB (memoryMB)`);
  }
  if (memoryMib % 2 === 1) refuse("Memory must be divisible by 2 (memoryMB)");
  if (diskBytes > limits.diskBytes) {
    refuse(`Disk can't be larger than ${Math.floor(limits.diskBytes / MIB)} MiB (minFreeDiskMb)`);
  }
  return { ...DEFAULT_RESOURCES, vcpus, memoryBytes: memoryMib * MIB, diskBytes };
}

const COMMAND_MAX_CHARS = 65_536;

export const BuildStart = z
  .object({
    fromImage: z.string().nullish().openapi({
      description: "A registry reference, or `sha256:<hex>` of an image on the node.",
      example: "debian:12",
    }),
    fromImageRegistry: z
      .object({ type: z.string(), username: z.string().optional(), password: z.string().optional() })
      .nullish(),
    fromTemplate: NotYet,
    steps: NotYet,
    startCmd: z.string().max(COMMAND_MAX_CHARS).nullish().openapi({
      description: "Started before the template is captured; it goes on in every sandbox of it.",
    }),
    readyCmd: z.string().max(COMMAND_MAX_CHARS).nullish().openapi({
      description: "Ends with 0 when the template is ready to be captured; tried every two seconds, up to ten minutes.",
    }),
    force: z.boolean().nullish(),
  })
  .openapi("TemplateBuildStartV2");

const LOCAL = /^sha256:[0-9a-f]{64}$/;
const REFERENCE = /^[A-Za-z0-9][A-Za-z0-9._:/@[\]-]{0,511}$/;

/** Errors: invalid, by field. */
export function toBuildPlan(body: z.output<typeof BuildStart>): BuildPlan {
  for (const field of ["fromTemplate", "steps"] as const) refuseNotYet(field, body[field]);
  // Clients send "" for none.
  const startCmd = body.startCmd?.trim() ?? "";
  const readyCmd = body.readyCmd?.trim() ?? "";
  for (const [field, text] of Object.entries({ startCmd, readyCmd })) {
    if (text.includes("\0")) throw invalid(field, `${field} contains a NUL`);
  }
  const commands = { ...(startCmd !== "" && { startCmd }), ...(readyCmd !== "" && { readyCmd }) };
  return { source: toImageSource(body), commands };
}

function toImageSource(body: z.output<typeof BuildStart>): ImageSource {
  const reference = body.fromImage?.trim() ?? "";
  if (reference === "") throw invalid("fromImage", "fromImage is required: a registry reference or sha256:<hex>");
  if (LOCAL.test(reference)) return { kind: "local", digest: reference };
  if (reference.startsWith("sha256:") || !REFERENCE.test(reference)) {
    throw invalid("fromImage", `fromImage: '${reference}' is neither a registry reference nor sha256: and 64 hex`);
  }
  const credentials = toCredentials(body.fromImageRegistry);
  return { kind: "registry", reference, ...(credentials === undefined ? {} : { credentials }) };
}

function toCredentials(
  registry: z.output<typeof BuildStart>["fromImageRegistry"],
): { username: string; password: string } | undefined {
  if (registry === null || registry === undefined) return undefined;
  const { type, username, password } = registry;
  if (type !== "registry") {
    throw invalid("fromImageRegistry.type", `fromImageRegistry.type '${type}' is not supported yet, only 'registry'`);
  }
  if (!username || password === undefined) {
    throw invalid("fromImageRegistry", "fromImageRegistry needs username and password");
  }
  return { username, password };
}

function invalid(field: string, message: string): AenvError {
  return new AenvError("invalid", message, { field });
}

const LEVELS = ["debug", "info", "warn", "error"] as const;
const LOGS_MAX = 100;

export const BuildStatusQuery = z.object({
  logsOffset: z.coerce.number().int().min(0).default(0),
  limit: z.coerce.number().int().min(1).max(LOGS_MAX).default(LOGS_MAX),
  level: z.enum(LEVELS).optional(),
});

const LogEntryBody = z
  .object({ timestamp: z.iso.datetime(), level: z.enum(LEVELS), message: z.string(), step: z.string().optional() })
  .openapi("BuildLogEntry");

export const BuildInfo = z
  .object({
    templateID: z.string(),
    buildID: z.string(),
    status: z.enum(["waiting", "building", "ready", "error"]),
    logs: z.array(z.string()),
    logEntries: z.array(LogEntryBody),
    reason: z
      .object({
        message: z.string(),
        step: z.string().optional(),
        logEntries: z.array(LogEntryBody),
        kind: z
          .string()
          .optional()
          .openapi({ description: "What a client can do about it; not part of E2B's answer." }),
      })
      .optional(),
    progress: z
      .object({
        phase: z.string(),
        doneBytes: z.int(),
        totalBytes: z.int().openapi({ description: "0 while unknown." }),
        layersDone: z.int(),
        layersTotal: z.int(),
      })
      .openapi({ description: "How far the build is; not part of E2B's answer." }),
  })
  .openapi("TemplateBuildInfo");

/** The offset counts entries of the asked level and above; past the last there are none. */
export function toBuildInfo(view: BuildView, query: z.output<typeof BuildStatusQuery>): z.output<typeof BuildInfo> {
  const { build, log, progress } = view;
  const lowest = LEVELS.indexOf(query.level ?? "debug");
  const entries = log
    .filter(({ level }) => LEVELS.indexOf(level) >= lowest)
    .slice(query.logsOffset, query.logsOffset + query.limit)
    .map(toLogEntry);
  return {
    templateID: build.templateId,
    buildID: build.id,
    status: build.status,
    logs: entries.map(({ message }) => message),
    logEntries: entries,
    ...(build.reason === undefined ? {} : { reason: { ...build.reason, logEntries: [] } }),
    progress: { ...progress },
  };
}

function toLogEntry({ atMs, level, message, step }: BuildLogEntry): z.output<typeof LogEntryBody> {
  const entry = { timestamp: new Date(atMs).toISOString(), level, message };
  return step === undefined ? entry : { ...entry, step };
}
