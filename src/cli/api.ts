import { ApiError, CliError, EXIT } from "./errors.ts";
import { type HttpClient, readBody } from "./http.ts";
import type {
  BuildInfo,
  BuildRef,
  CreateSandbox,
  ForkOutcome,
  ListedSandbox,
  ListFilter,
  LogEntry,
  Metric,
  RegistryLogin,
  SandboxDetail,
  SandboxHandle,
  SnapshotInfo,
  Template,
  TemplateDetail,
} from "./objects.ts";

export type * from "./objects.ts";

/** A create or a resume may have to fetch a lot first; the server decides when to give up, this only ends a dead one. */
const ANSWER_TIMEOUT_MS = 300_000;
const MAX_ANSWER_BYTES = 64 << 20;

/** The control API. Every method throws ApiError for a refusal and CliError (unavailable) where there is no answer. */
export class ApiClient {
  readonly http: HttpClient;
  readonly #key: string | undefined;

  constructor(http: HttpClient, key: string | undefined) {
    this.http = http;
    this.#key = key;
  }

  /** Throws when the server is not there, is not ours or does not accept the key. */
  async check(): Promise<void> {
    const answer = await this.#call("GET", "/v2/sandboxes?limit=1");
    if (Array.isArray(answer.body)) return;
    throw new CliError(EXIT.failure, `what answers at ${this.http.baseUrl} is not an aenv server`);
  }

  /** All of them, page by page. */
  async listSandboxes(filter: ListFilter = {}): Promise<ListedSandbox[]> {
    const query: string[] = [];
    if (filter.states?.length) query.push(`state=${filter.states.map(encodeURIComponent).join(",")}`);
    if (filter.metadata) query.push(`metadata=${encodeURIComponent(encodeMetadata(filter.metadata))}`);
    return await this.#pages<ListedSandbox>("/v2/sandboxes", query);
  }

  async createSandbox(request: CreateSandbox, signal?: AbortSignal): Promise<SandboxHandle> {
    return (await this.#call("POST", "/v2/sandboxes", request, signal)).body as SandboxHandle;
  }

  async getSandbox(id: string, signal?: AbortSignal): Promise<SandboxDetail> {
    return (await this.#call("GET", `/sandboxes/${segment(id)}`, undefined, signal)).body as SandboxDetail;
  }

  /** Makes sure that it runs; `resumed` tells whether it had to be resumed. Only ever extends a running one's life. */
  async connectSandbox(id: string, timeoutS: number): Promise<{ sandbox: SandboxHandle; resumed: boolean }> {
    const answer = await this.#call("POST", `/sandboxes/${segment(id)}/connect`, { timeout: timeoutS });
    return { sandbox: answer.body as SandboxHandle, resumed: answer.status === 201 };
  }

  /** False: it was paused already. */
  async pauseSandbox(id: string): Promise<boolean> {
    try {
      await this.#call("POST", `/sandboxes/${segment(id)}/pause`, {});
      return true;
    } catch (error) {
      // 409 is also the answer for a sandbox in the middle of something else; its state tells which.
      if (error instanceof ApiError && error.status === 409 && (await this.getSandbox(id)).state === "paused")
        return false;
      throw error;
    }
  }

  async setTimeout(id: string, timeoutS: number): Promise<void> {
    await this.#call("POST", `/sandboxes/${segment(id)}/timeout`, { timeout: timeoutS });
  }

  /** As setTimeout, but never shortens. */
  async refresh(id: string, durationS: number, signal?: AbortSignal): Promise<void> {
    await this.#call("POST", `/sandboxes/${segment(id)}/refreshes`, { duration: durationS }, signal);
  }

  async deleteSandbox(id: string, signal?: AbortSignal): Promise<void> {
    await this.#call("DELETE", `/sandboxes/${segment(id)}`, undefined, signal);
  }

  /** A page, oldest first, from a moment on (included). */
  async sandboxLogs(
    id: string,
    query: { readonly cursorMs: number | undefined; readonly limit: number },
    signal?: AbortSignal,
  ): Promise<LogEntry[]> {
    const cursor = query.cursorMs === undefined ? "" : `&cursor=${query.cursorMs}`;
    const path = `/v2/sandboxes/${segment(id)}/logs?direction=forward&limit=${query.limit}${cursor}`;
    return ((await this.#call("GET", path, undefined, signal)).body as { logs: LogEntry[] }).logs;
  }

  /** Oldest first, from a second on (included). */
  async sandboxMetrics(id: string, startS: number | undefined, signal?: AbortSignal): Promise<Metric[]> {
    const start = startS === undefined ? "" : `?start=${startS}`;
    return (await this.#call("GET", `/sandboxes/${segment(id)}/metrics${start}`, undefined, signal)).body as Metric[];
  }

  async forkSandbox(id: string, count: number, timeoutS?: number): Promise<ForkOutcome[]> {
    const body = { count, ...(timeoutS === undefined ? {} : { timeout: timeoutS }) };
    return (await this.#call("POST", `/sandboxes/${segment(id)}/fork`, body)).body as ForkOutcome[];
  }

  async createSnapshot(id: string, body: { name?: string; memory?: boolean } = {}): Promise<SnapshotInfo> {
    return (await this.#call("POST", `/sandboxes/${segment(id)}/snapshots`, body)).body as SnapshotInfo;
  }

  /** One for each name or id, newest first. */
  async listSnapshots(filter: { readonly sandboxID?: string; readonly name?: string } = {}): Promise<SnapshotInfo[]> {
    const query = Object.entries(filter).map(([name, value]) => `${name}=${encodeURIComponent(value)}`);
    return await this.#pages<SnapshotInfo>("/snapshots", query);
  }

  async createTemplate(request: { name: string; cpuCount?: number; memoryMB?: number }): Promise<BuildRef> {
    return (await this.#call("POST", "/v3/templates", request)).body as BuildRef;
  }

  async startBuild(build: BuildRef, fromImage: string, login?: RegistryLogin): Promise<void> {
    await this.#call("POST", `/v2/templates/${segment(build.templateID)}/builds/${segment(build.buildID)}`, {
      fromImage,
      ...(login === undefined ? {} : { fromImageRegistry: { type: "registry", ...login } }),
    });
  }

  async buildStatus(build: BuildRef, logsOffset: number, signal?: AbortSignal): Promise<BuildInfo> {
    const path = `/templates/${segment(build.templateID)}/builds/${segment(build.buildID)}/status`;
    return (await this.#call("GET", `${path}?logsOffset=${logsOffset}`, undefined, signal)).body as BuildInfo;
  }

  async listTemplates(): Promise<Template[]> {
    return (await this.#call("GET", "/templates")).body as Template[];
  }

  async getTemplate(id: string): Promise<TemplateDetail> {
    return (await this.#call("GET", `/templates/${segment(id)}`)).body as TemplateDetail;
  }

  async deleteTemplate(id: string): Promise<void> {
    await this.#call("DELETE", `/templates/${segment(id)}`);
  }

  /** A whole list, page by page. */
  async #pages<T>(path: string, query: readonly string[]): Promise<T[]> {
    const found: T[] = [];
    for (let token: string | undefined = ""; token !== undefined; ) {
      const next: string[] = token === "" ? [] : [`nextToken=${encodeURIComponent(token)}`];
      const page = await this.#call("GET", `${path}?${["limit=100", ...query, ...next].join("&")}`);
      found.push(...(page.body as T[]));
      token = page.nextToken;
    }
    return found;
  }

  async #call(
    method: "GET" | "POST" | "DELETE",
    path: string,
    body?: unknown,
    signal?: AbortSignal,
  ): Promise<{ readonly status: number; readonly body: unknown; readonly nextToken: string | undefined }> {
    const response = await this.http.send({
      method,
      path,
      headers: {
        accept: "application/json",
        ...(this.#key === undefined ? {} : { "x-api-key": this.#key }),
        ...(body === undefined ? {} : { "content-type": "application/json" }),
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      ...(signal === undefined ? {} : { signal }),
      timeoutMs: ANSWER_TIMEOUT_MS,
    });
    const status = response.statusCode ?? 0;
    const text = (await readBody(response, MAX_ANSWER_BYTES)).toString("utf8");
    if (status < 200 || status > 299)
      throw refusal(status, text, path, { hadKey: this.#key !== undefined, baseUrl: this.http.baseUrl });
    const token = response.headers["x-next-token"];
    return {
      status,
      body: text === "" ? undefined : parseJson(text, this.http.baseUrl),
      nextToken: typeof token === "string" && token !== "" ? token : undefined,
    };
  }
}

function refusal(
  status: number,
  text: string,
  path: string,
  { hadKey, baseUrl }: { readonly hadKey: boolean; readonly baseUrl: string },
): CliError {
  if (status === 401) {
    return hadKey
      ? new ApiError(status, "the server does not accept this API key", "run `aenv auth` to log in with another key")
      : new ApiError(status, "no API key: you are not logged in", "run `aenv auth` to log in");
  }
  let message = "";
  try {
    const parsed = JSON.parse(text) as { message?: unknown };
    if (typeof parsed.message === "string") message = parsed.message;
  } catch {
    // Something that is not ours answered; the status is all there is to say.
  }
  // Ours says what it does not find.
  if (message === "" && status === 404) return notOurs(baseUrl);
  if (message === "") message = `the server answered with HTTP status ${status}`;
  return new ApiError(status, message, status === 404 ? whatThereIs(path, message) : undefined);
}

/** Where to look for what does exist: a create names a sandbox's path and misses a template. */
function whatThereIs(path: string, message: string): string {
  const template = /^\/(v\d\/)?templates\b/.test(path) || /^template\b/i.test(message);
  return template ? "`aenv template ls` shows the templates there are" : "`aenv ls` shows the sandboxes there are";
}

function parseJson(text: string, baseUrl: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw notOurs(baseUrl);
  }
}

function notOurs(baseUrl: string): CliError {
  return new CliError(EXIT.failure, `what answers at ${baseUrl} is not an aenv server`, {
    hint: "check the URL: --url, AENV_URL or `aenv auth`",
  });
}

/** Throws CliError (usage). */
function segment(id: string): string {
  if (id === "") throw new CliError(EXIT.usage, "the id is empty", { hint: "`aenv ls` shows the sandboxes there are" });
  return encodeURIComponent(id);
}

/** Keys and values are encoded twice before the query encoding: the server decodes the whole and then each part. */
function encodeMetadata(metadata: Readonly<Record<string, string>>): string {
  const twice = (text: string): string => encodeURIComponent(encodeURIComponent(text));
  return Object.entries(metadata)
    .map(([key, value]) => `${twice(key)}=${twice(value)}`)
    .join("&");
}
