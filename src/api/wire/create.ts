import { z } from "@hono/zod-openapi";
import type { CreateRequest } from "#cluster";
import { AenvError, type TrafficPolicy } from "#domain";
import { lifeToMs, Seconds } from "./timeout.ts";
import { NotYet, refuseNotEnabled, refuseNotYet } from "./unsupported.ts";

const Strings = z.record(z.string(), z.string());

// biome-ignore lint/suspicious/noTemplateCurlyInString: E2B's word for the port
const PORT_WORD = "${PORT}";

const NETWORK_NOT_ENABLED = ["allowOut", "denyOut", "rules", "egressProxy", "httpsPorts", "dnsServers"] as const;

const Network = z
  .object({
    allowPublicTraffic: z
      .boolean()
      .nullish()
      .openapi({ description: "false: ports are open only to who shows trafficAccessToken." }),
    allowOut: NotYet,
    denyOut: NotYet,
    rules: NotYet,
    egressProxy: NotYet,
    maskRequestHost: z
      .string()
      .nullish()
      .openapi({ description: `What services get as Host; \`${PORT_WORD}\` stands for the port.` }),
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
  autoPauseMemory: z
    .boolean()
    .nullish()
    .openapi({ description: "false: such a pause keeps files only, and the sandbox is booted from them." }),
  autoResume: z.object({ enabled: z.boolean().nullish() }).nullish(),
  network: Network.nullish(),
  volumeMounts: NotYet,
  mcp: z.record(z.string(), z.unknown()).nullish().openapi({
    description: "Of the client, which starts the gateway in the sandbox; the server does nothing with it.",
  }),
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
  checkAutoPause(body);
  // Without a token the agent would let anyone in, to every port. The text is E2B's.
  if (!defaults.secure && body.network?.allowPublicTraffic === false) {
    throw new AenvError(
      "invalid",
      "You cannot create a sandbox without public access unless you enable secure envd access via 'secure' flag.",
      { field: "network.allowPublicTraffic" },
    );
  }
  return {
    template: body.templateID,
    env: checkedEnv(body.envVars ?? {}),
    metadata: body.metadata ?? {},
    network: { internet: body.allow_internet_access ?? true },
    traffic: trafficOf(body.network),
    timeoutMs: lifeToMs(body.timeout ?? defaults.timeoutSeconds, defaults.maxTimeoutMs),
    onTimeout: body.autoPause ? "pause" : "kill",
    ...(body.autoPauseMemory === false && { timeoutCapture: "disk" as const }),
    autoResume: body.autoResume?.enabled ?? false,
    secure: defaults.secure,
  };
}

function refuseUnbuilt(body: z.output<typeof NewSandboxV2>): void {
  refuseNotEnabled("volumeMounts", body.volumeMounts);
  refuseNotYet("iam.tokens", body.iam?.tokens);
  for (const field of NETWORK_NOT_ENABLED) refuseNotEnabled(`network.${field}`, body.network?.[field]);
}

/** A pause without memory is one that traffic does not end. The texts are E2B's. */
function checkAutoPause(body: z.output<typeof NewSandboxV2>): void {
  if (body.autoPauseMemory !== false) return;
  const field = "autoPauseMemory";
  if (!body.autoPause) {
    throw new AenvError("invalid", "autoPauseMemory=false only applies when autoPause is true.", { field });
  }
  if (body.autoResume?.enabled) {
    throw new AenvError(
      "invalid",
      "autoPauseMemory=false (filesystem-only auto-pause) cannot be combined with autoResume: a filesystem-only snapshot cannot be auto-resumed by traffic and must be resumed explicitly.",
      { field },
    );
  }
}

function trafficOf(network: z.output<typeof Network> | null | undefined): TrafficPolicy {
  const mask = network?.maskRequestHost ?? "";
  return { isPublic: network?.allowPublicTraffic ?? true, ...(mask !== "" && { maskHost: checkedHost(mask) }) };
}

/** A name or address, and a port or `${PORT}`: nothing that could become more than a Host. */
const HOST = /^([a-zA-Z0-9]([a-zA-Z0-9._-]*[a-zA-Z0-9])?|\[[0-9a-fA-F:.]+\])(:\d{1,5})?$/;
const MAX_HOST_LENGTH = 255;

function checkedHost(mask: string): string {
  // The port may be part of the name as well, as it is in a sandbox's own.
  const sample = mask.replaceAll(PORT_WORD, "65535");
  if (sample.length <= MAX_HOST_LENGTH && HOST.test(sample)) return mask;
  throw new AenvError(
    "invalid",
    `network.maskRequestHost must be a host name, with a port or ${PORT_WORD} behind a colon`,
    {
      field: "network.maskRequestHost",
    },
  );
}

/** What programs inside take for who they are; a sandbox's own, never handed over from another. */
const RESERVED_ENV: ReadonlySet<string> = new Set(["E2B_SANDBOX_ID", "E2B_TEMPLATE_ID"]);

/** Names that no process environment can carry, or that are the sandbox's own, are refused here, by name. */
function checkedEnv(env: Readonly<Record<string, string>>): Readonly<Record<string, string>> {
  for (const [name, value] of Object.entries(env)) {
    if (RESERVED_ENV.has(name)) {
      throw new AenvError("invalid", `envVars: ${name} is set by the server: it says which sandbox this is`, {
        field: "envVars",
      });
    }
    if (name === "" || name.includes("=") || name.includes("\0") || value.includes("\0")) {
      const why = value.includes("\0")
        ? "a value must not hold a NUL character"
        : "a name must not be empty or hold = or NUL";
      throw new AenvError("invalid", `envVars: ${JSON.stringify(name)}: ${why}`, { field: "envVars" });
    }
  }
  return env;
}
