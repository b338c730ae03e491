import type { ApiClient } from "./api.ts";
import { credentialsPath, DEFAULT_URL, parseKey, readCredentials } from "./credentials.ts";
import type { CliIo } from "./io.ts";
import { Output } from "./output.ts";

export interface GlobalOptions {
  readonly json: boolean;
  readonly url: string | undefined;
  readonly key: string | undefined;
}

/** What a command works with. */
export class Context {
  readonly io: CliIo;
  readonly out: Output;
  readonly globals: GlobalOptions;
  #api: ApiClient | undefined;

  constructor(io: CliIo, globals: GlobalOptions) {
    this.io = io;
    this.globals = globals;
    this.out = new Output(io);
  }

  get json(): boolean {
    return this.globals.json;
  }

  get credentialsPath(): string {
    return credentialsPath(this.io.env);
  }

  /** The server and key in force: flag, else environment, else what `aenv auth` saved, else the default. The saved key goes
   *  to the server it was saved for and to no other. */
  async server(): Promise<{ readonly url: string; readonly key: string | undefined }> {
    const { parseServerUrl } = await import("./http.ts");
    const { env } = this.io;
    const asked = this.globals.url ?? (env.AENV_URL || undefined);
    const key = this.globals.key ?? (env.AENV_API_KEY || undefined);
    const saved = asked !== undefined && key !== undefined ? {} : await readCredentials(this.credentialsPath);
    const savedUrl = parseServerUrl(saved.url ?? DEFAULT_URL);
    const url = asked === undefined ? savedUrl : parseServerUrl(asked);
    const usedKey = key ?? (url === savedUrl ? saved.key : undefined);
    return { url, key: usedKey === undefined ? undefined : parseKey(usedKey) };
  }

  /** The client of that server. One for the whole command, closed with it. */
  async api(): Promise<ApiClient> {
    if (this.#api === undefined) {
      const { url, key } = await this.server();
      this.#api = await this.connectTo(url, key);
    }
    return this.#api;
  }

  /** As `api`, for a server that is not (yet) the one in force. */
  async connectTo(url: string, key: string | undefined): Promise<ApiClient> {
    // Loaded here so that `--help` and `--version` do not wait for an HTTP client.
    const [{ ApiClient }, { HttpClient }] = await Promise.all([import("./api.ts"), import("./http.ts")]);
    this.#api?.http.close();
    this.#api = new ApiClient(await HttpClient.open(url), key);
    return this.#api;
  }

  close(): void {
    this.#api?.http.close();
  }
}
