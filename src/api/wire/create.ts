import { z } from "@hono/zod-openapi";
import type { CreateRequest } from "#cluster";
import { AenvError } from "#domain";
import { lifeToMs, Seconds } from "./timeout.ts";
import { NotYet, refuseFalse, refuseNotYet } from "./unsupported.ts";

const Strings = z.record(z.string(), z.string());

const NETWORK_NOT_YET = [
  "allowOut",
  "denyOut",
  "rules",
  "egressProxy",
  "maskRequestHost",
  "httpsPorts",
  "dnsServers",
] as const;

const Network = z
  .object({
    allowPublicTraffic: z.boolean().nullish(),
    allowOut: NotYet,
    denyOut: NotYet,
    rules: NotYet,
    egressProxy: NotYet,
    maskRequestHost: NotYet,
    httpsPorts: NotYet,
    dnsServers: NotYet,
  })
  .openapi("SandboxNetworkConfig");

const common = {
  templateID: z.string().min(1).openapi({ description: "`[team/]name[:tag]` or a template's id.", example: "base" }),
  metadata: Strings.nullish(),
  envVars: Strings.nullish(),
  allow_internet_access: z.boolean().nullish(),
  autoPause: z.boolean().nullish().openapi({ description: "Pause instead of kill when the time is up." }),
  autoPauseMemory: z.boolean().nullish(),
  autoResume: z.object({ enabled: z.boolean().nullish() }).nullish(),
  network: Network.nullish(),
  volumeMounts: NotYet,
  mcp: NotYet,
  iam: z.object({ tokens: NotYet }).nullish(),
};

export const NewSandbox = z
  .object({
    ...common,
    timeout: Seconds.nullish().openapi({ description: "Seconds; 15 when left out." }),
    secure: z.boolean().nullish(),
  })
  .openapi("NewSandbox");

export const NewSandboxV2 = z
  .object({ ...common, timeout: Seconds.nullish().openapi({ description: "Seconds; 300 when left out." }) })
  .openapi("NewSandboxV2");

export interface CreateDefaults {
  readonly timeoutSeconds: number;
  readonly secure: boolean;
  readonly maxTimeoutMs: number;
}

/** Errors: invalid, by field. */
export function toCreateRequest(body: z.output<typeof NewSandboxV2>, defaults: CreateDefaults): CreateRequest {
  refuseUnbuilt(body);
  return {
    template: body.templateID,
    env: checkedEnv(body.envVars ?? {}),
    metadata: body.metadata ?? {},
    network: { internet: body.allow_internet_access ?? true },
    timeoutMs: lifeToMs(body.timeout ?? defaults.timeoutSeconds, defaults.maxTimeoutMs),
    onTimeout: body.autoPause ? "pause" : "kill",
    autoResume: body.autoResume?.enabled ?? false,
    secure: defaults.secure,
  };
}

function refuseUnbuilt(body: z.output<typeof NewSandboxV2>): void {
  for (const field of ["volumeMounts", "mcp"] as const) refuseNotYet(field, body[field]);
  refuseNotYet("iam.tokens", body.iam?.tokens);
  for (const field of NETWORK_NOT_YET) refuseNotYet(`network.${field}`, body.network?.[field]);
  refuseFalse("network.allowPublicTraffic", body.network?.allowPublicTraffic);
  refuseFalse("autoPauseMemory", body.autoPauseMemory);
}

/** Names that no process environment can carry are refused here, by name. */
function checkedEnv(env: Readonly<Record<string, string>>): Readonly<Record<string, string>> {
  for (const [name, value] of Object.entries(env)) {
    if (name === "" || name.includes("=") || name.includes("\0") || value.includes("\0")) {
      const why = value.includes("\0")
        ? "a value must not hold a NUL character"
        : "a name must not be empty or hold = or NUL";
      throw new AenvError("invalid", `envVars: ${JSON.stringify(name)}: ${why}`, { field: "envVars" });
    }
  }
  return env;
}
