import { existsSync, readFileSync } from "node:fs";
import { cpus } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { z } from "zod";
import { AenvError } from "#domain";

const LISTEN = /^(\[[0-9a-fA-F:]+\]|[^:]+):\d{1,5}$/;
/** Clients refuse a wildcard of a single label. */
const DOMAIN = /^(?=.{1,190}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+$/;
/** Of `tlsListen` when it is not set, above the port of `listen`: 8443 for 8000. */
const TLS_PORT_ABOVE = 443;
const STARTS_PER_CORE = 2;

/**
 * The server's one configuration. Order of precedence: default, file (`--config`, else `config.json` in the data folder),
 * `AENV_*`, flag. Every field has a name, a
 * default and a meaning; complaints name the field, its value and where it came from. `aenvd config` prints the result.
 */
const schema = z.strictObject({
  /** Everything the server keeps. */
  dataDir: z.string().startsWith("/").default("/var/lib/aenv"),
  /** Address and port of the edge, which serves API and sandbox traffic alike. */
  listen: z.string().regex(LISTEN, "must have the form address:port").default("127.0.0.1:8000"),
  /** The same with TLS. By default the address of `listen` and its port + 443; `none`: no TLS. */
  tlsListen: z
    .union([z.literal("none"), z.string().regex(LISTEN, "must have the form address:port, or be none")])
    .nullable()
    .default(null),
  /** Certificate (chain) and key of your own, in PEM; read again when they change. Without them a local authority in the data
   *  folder signs. */
  tlsCertPath: z.string().startsWith("/").nullable().default(null),
  tlsKeyPath: z.string().startsWith("/").nullable().default(null),
  /** Folder with `keeper`, `blobd`, `edge`, `netslot`, `sentrysave`, `envd` and `kvmprobe`. */
  binDir: z.string().startsWith("/").default("/usr/local/lib/aenv"),
  /** The gVisor runtime. */
  runscPath: z.string().startsWith("/").default("/usr/local/lib/aenv/runsc"),
  /** What isolates sandboxes: gVisor, or Firecracker's machines by `kvm` or `pvm`. `auto`: Firecracker where /dev/kvm runs
   *  ordinary guests and what it needs is installed, else gVisor; PVM only where `pvmKernelPath` is set. */
  virtualization: z.enum(["auto", "kvm", "pvm", "gvisor"]).default("auto"),
  /** Firecracker and its jailer, of one release. */
  firecrackerPath: z.string().startsWith("/").default("/usr/local/lib/aenv/firecracker"),
  jailerPath: z.string().startsWith("/").default("/usr/local/lib/aenv/jailer"),
  /** The kernel of Firecracker's machines, an uncompressed ELF file, and its initrd. */
  guestKernelPath: z.string().startsWith("/").default("/usr/local/lib/aenv/guest/vmlinux"),
  guestInitrdPath: z.string().startsWith("/").default("/usr/local/lib/aenv/guest/initrd"),
  /** A kernel that knows of PVM, in the place of `guestKernelPath` on hosts whose /dev/kvm is PVM's; none by default. */
  pvmKernelPath: z.string().startsWith("/").nullable().default(null),
  /** More words for the command line of these kernels. */
  guestKernelArgs: z
    .string()
    .regex(/^[\x20-\x7e]*$/, "must be printable ASCII")
    .default(""),
  /** Build of this server, shown by `GET /version`. */
  commit: z.string().default("unknown"),
  logLevel: z.enum(["debug", "info", "warn", "error"]).default("info"),
  /** Host name below which sandboxes are PORT-ID.DOMAIN, and the API is api.DOMAIN. */
  domain: z
    .string()
    .regex(DOMAIN, "must be a host name of at least two labels, in lower case and without a port")
    .default("e2b.localhost"),
  /** Network slots kept ready, and how many there may be in all. */
  slotsReady: z.number().int().min(0).max(256).default(16),
  slotsMax: z.number().int().min(1).max(2000).default(1000),
  /** Longest life a sandbox can ask for at once. */
  maxTimeoutHours: z
    .number()
    .positive()
    .max(24 * 365)
    .default(24),
  /** A paused sandbox is removed so long after its pause; 0: never. */
  pausedRetentionHours: z
    .number()
    .min(0)
    .max(24 * 365 * 100)
    .default(0),
  /** How long the agent of a starting sandbox may take to answer, and as long again for its identity. */
  readyTimeoutMs: z.number().int().min(100).default(30_000),
  /** Memory that what stands ready may hold: clones of templates, for the next sandboxes, and frozen machines of paused ones.
   *  By default a quarter of what was available when the server started; 0: nothing stands ready. */
  memoryBudgetMib: z.number().int().min(0).nullable().default(null),
  /** A running sandbox that nobody has used for so long, and that has done nothing by itself, stands still until somebody does; 0:
   *  none does. */
  idleAfterMs: z.number().int().min(0).default(30_000),
  /** Disk that the memory of sandboxes which stand still may take, as swap files in the data folder, made when they are needed. By
   *  default twice the host's memory; 0: it stays in memory. */
  swapMaxMib: z.number().int().min(0).nullable().default(null),
  /** Sandboxes restored at the same time. More than there are cores, because a restore also waits. */
  startsAtOnce: z
    .number()
    .int()
    .min(1)
    .default(STARTS_PER_CORE * cpus().length),
});

export type Config = z.infer<typeof schema>;
type Field = keyof Config;

const FIELDS = Object.keys(schema.shape) as Field[];

/** `dataDir` → `AENV_DATA_DIR` and `--data-dir`. */
function words(field: string): string[] {
  return field.split(/(?=[A-Z])/).map((word) => word.toLowerCase());
}

export interface LoadedConfig {
  readonly config: Config;
  /** Where each value that is not a default came from. */
  readonly sources: Readonly<Partial<Record<Field, string>>>;
  readonly positionals: readonly string[];
  readonly flags: Readonly<Record<string, string | boolean | undefined>>;
}

/** Reads file, environment and flags once. `extraFlags` are those of a subcommand. Errors: invalid. */
export function loadConfig(
  argv: readonly string[],
  extraFlags: Readonly<Record<string, { readonly type: "string" | "boolean" }>> = {},
  env: NodeJS.ProcessEnv = process.env,
): LoadedConfig {
  const options: Record<string, { type: "string" | "boolean" }> = { config: { type: "string" }, ...extraFlags };
  for (const field of FIELDS) options[words(field).join("-")] = { type: "string" };
  const { values, positionals } = parse(argv, options);
  const raw: Record<string, unknown> = {};
  const sources: Partial<Record<Field, string>> = {};
  const take = (field: Field, value: unknown, source: string): void => {
    raw[field] = value;
    sources[field] = source;
  };
  const file = configFile(values, env);
  if (file !== undefined) {
    for (const [name, value] of Object.entries(readConfigFile(file))) take(name as Field, value, file);
  }
  for (const field of FIELDS) {
    const variable = `AENV_${words(field).join("_").toUpperCase()}`;
    const fromEnv = env[variable];
    if (fromEnv !== undefined && fromEnv !== "") take(field, typed(field, fromEnv), variable);
    const flag = words(field).join("-");
    const fromFlag = values[flag];
    if (typeof fromFlag === "string") take(field, typed(field, fromFlag), `--${flag}`);
  }
  return { config: check(raw, sources, file), sources, positionals, flags: values };
}

/** The whole configuration that a file with these fields makes. Errors: invalid. */
export function completeConfig(fields: Readonly<Record<string, unknown>>): Config {
  return check(fields, {}, undefined);
}

const WHOLE_PAIR = "tlsCertPath and tlsKeyPath belong together: set both or none";

function hasWholePair({ tlsCertPath, tlsKeyPath }: Config): boolean {
  return (tlsCertPath === null) === (tlsKeyPath === null);
}

function check(
  raw: Readonly<Record<string, unknown>>,
  sources: LoadedConfig["sources"],
  file: string | undefined,
): Config {
  const checked = schema.refine(hasWholePair, { path: ["tlsCertPath"], message: WHOLE_PAIR }).safeParse(raw);
  if (checked.success) return checked.data;
  const problems = checked.error.issues.map((issue) => {
    const name = String(issue.path[0] ?? (issue.code === "unrecognized_keys" ? issue.keys.join(", ") : "?"));
    const source = sources[name as Field] ?? file ?? "the configuration";
    return `${name} (${JSON.stringify(raw[name])}, from ${source}): ${issue.message}`;
  });
  throw new AenvError("invalid", `configuration is wrong: ${problems.join("; ")}`, {
    hint: `known fields: ${FIELDS.join(", ")}`,
  });
}

/** The file that was named, else the one that `npm run up` left in the data folder. */
function configFile(
  values: Readonly<Record<string, string | boolean | undefined>>,
  env: NodeJS.ProcessEnv,
): string | undefined {
  const named = values.config ?? env.AENV_CONFIG;
  if (typeof named === "string") return named;
  const dataDir = values["data-dir"] ?? env.AENV_DATA_DIR ?? schema.shape.dataDir.parse(undefined);
  const usual = join(String(dataDir), "config.json");
  return existsSync(usual) ? usual : undefined;
}

function parse(
  argv: readonly string[],
  options: Record<string, { type: "string" | "boolean" }>,
): { values: Record<string, string | boolean | undefined>; positionals: string[] } {
  try {
    const parsed = parseArgs({ args: [...argv], options, allowPositionals: true });
    return { values: parsed.values as Record<string, string | boolean | undefined>, positionals: parsed.positionals };
  } catch (error) {
    throw new AenvError("invalid", error instanceof Error ? error.message : String(error), {
      hint: "see aenvd --help",
    });
  }
}

function readConfigFile(file: string): Record<string, unknown> {
  try {
    const json: unknown = JSON.parse(readFileSync(file, "utf8"));
    if (typeof json === "object" && json !== null && !Array.isArray(json)) return json as Record<string, unknown>;
  } catch (error) {
    throw new AenvError("invalid", `configuration file ${file} cannot be read`, { cause: error });
  }
  throw new AenvError("invalid", `configuration file ${file} does not hold a JSON object`);
}

/** Text from the environment or a flag as the field's JSON type; the schema judges it. */
function typed(field: Field, text: string): unknown {
  const isText = schema.shape[field].safeParse("").error?.issues[0]?.code !== "invalid_type";
  if (isText || Number.isNaN(Number(text))) return text;
  return Number(text);
}

/** Fixed places below the data folder; the tree is described in docs/formats.md. */
export function dataPaths(dataDir: string) {
  const run = join(dataDir, "run");
  return {
    apiKey: join(dataDir, "api-key"),
    catalog: join(dataDir, "catalog.db"),
    machines: join(dataDir, "machines"),
    uppers: join(dataDir, "uppers"),
    firecracker: join(dataDir, "firecracker"),
    blobs: join(dataDir, "blobs"),
    swap: join(dataDir, "swap"),
    log: join(dataDir, "log"),
    tlsAuthority: join(dataDir, "tls", "ca.pem"),
    run,
    keeperSocket: join(run, "keeper.sock"),
    routesSocket: join(run, "routes.sock"),
    blobdSocket: join(run, "blobd.sock"),
    aenvdSocket: join(run, "aenvd.sock"),
  } as const;
}

/** Where the edge speaks TLS; undefined: nowhere. */
export function tlsListenOf({ listen, tlsListen }: Pick<Config, "listen" | "tlsListen">): string | undefined {
  if (tlsListen !== null) return tlsListen === "none" ? undefined : tlsListen;
  const { port } = splitListen(listen);
  const tlsPort = port + TLS_PORT_ABOVE;
  return tlsPort > 65_535 ? undefined : `${listen.slice(0, listen.lastIndexOf(":"))}:${tlsPort}`;
}

/** Every port of the edge. */
export function edgePorts(config: Pick<Config, "listen" | "tlsListen">): number[] {
  const tlsListen = tlsListenOf(config);
  return [config.listen, ...(tlsListen === undefined ? [] : [tlsListen])].map((listen) => splitListen(listen).port);
}

export function splitListen(listen: string): { readonly host: string; readonly port: number } {
  const at = listen.lastIndexOf(":");
  return { host: listen.slice(0, at).replace(/^\[|\]$/g, ""), port: Number(listen.slice(at + 1)) };
}
