import type { IncomingMessage } from "node:http";
import type { SandboxHandle } from "../api.ts";
import { ConnectClient } from "../connect.ts";
import { agentHeaders } from "../envd.ts";
import { CliError, EXIT, RpcError } from "../errors.ts";
import { type HttpClient, readBody } from "../http.ts";
import { toText } from "./names.ts";

const CALL_TIMEOUT_MS = 30_000;
const MAX_ANSWER_BYTES = 1 << 20;

export interface RemoteEntry {
  readonly kind: "file" | "folder" | "other";
  /** Permission bits. */
  readonly mode: number;
  readonly size: number;
  /** Older agents do not say. */
  readonly modifiedS?: number;
  /** Behind all links. */
  readonly path: string;
}

/** The files of one sandbox. Paths are bytes; relative ones start at the user's home. Every method throws CliError. */
export class RemoteFiles {
  readonly sandboxID: string;
  readonly #http: HttpClient;
  readonly #headers: Readonly<Record<string, string>>;
  readonly #user: string | undefined;
  readonly #signal: AbortSignal;

  constructor(http: HttpClient, sandbox: SandboxHandle, user: string | undefined, signal: AbortSignal) {
    this.sandboxID = sandbox.sandboxID;
    this.#http = http;
    this.#headers = agentHeaders(sandbox, user);
    this.#user = user;
    this.#signal = signal;
  }

  /** What is there, behind links; undefined: nothing. */
  async stat(path: string): Promise<RemoteEntry | undefined> {
    const connect = new ConnectClient(this.#http, this.#headers);
    try {
      const options = { timeoutMs: CALL_TIMEOUT_MS, signal: this.#signal };
      const answer = await connect.unary("/filesystem.Filesystem/Stat", { path: toText(path) }, options);
      const { type, mode = 0, size = "0", modifiedTime, symlinkTarget } = (answer as { entry?: WireEntry }).entry ?? {};
      return {
        kind: type === "FILE_TYPE_DIRECTORY" ? "folder" : type === "FILE_TYPE_FILE" ? "file" : "other",
        mode,
        size: Number(size),
        ...timeOf(modifiedTime),
        path: symlinkTarget === undefined ? path : Buffer.from(symlinkTarget).toString("latin1"),
      };
    } catch (error) {
      if (error instanceof RpcError && error.answered && error.code === "not_found") return undefined;
      throw this.#ofUser(error);
    }
  }

  /** A file's content, read to its end also where its size is not known before. */
  async read(path: string): Promise<AsyncIterable<Buffer>> {
    return this.#chunks(await this.#call("GET", "/files", path));
  }

  /** Makes the stream the content of a file, which keeps its mode, or gets 0644. */
  async write(path: string, content: AsyncIterable<Buffer>): Promise<void> {
    await readBody(await this.#call("POST", "/files", path, content), MAX_ANSWER_BYTES);
  }

  /** A tar of what lies there. */
  async pack(path: string): Promise<AsyncIterable<Buffer>> {
    return this.#chunks(await this.#call("GET", "/archive", path));
  }

  /** Unpacks a tar into a folder that exists. */
  async unpack(folder: string, archive: AsyncIterable<Buffer>): Promise<void> {
    await readBody(await this.#call("POST", "/archive", folder, archive), MAX_ANSWER_BYTES);
  }

  async #call(
    method: "GET" | "POST",
    route: "/files" | "/archive",
    path: string,
    body?: AsyncIterable<Buffer>,
  ): Promise<IncomingMessage> {
    const response = await this.#http.send({
      method,
      path: `${route}?path=${percentEncoded(path)}`,
      headers: { ...this.#headers, "accept-encoding": "identity", "content-type": "application/octet-stream" },
      ...(body === undefined ? {} : { body }),
      signal: this.#signal,
      timeoutMs: body === undefined ? CALL_TIMEOUT_MS : 0,
    });
    const status = response.statusCode ?? 0;
    if (status >= 200 && status < 300) return response;
    throw this.#ofUser(refusal(status, (await readBody(response, MAX_ANSWER_BYTES)).toString("utf8"), route));
  }

  /** The server gave us the token that lets us in; what the agent does not know is the user. */
  #ofUser(error: unknown): unknown {
    const isRefused = error instanceof CliError && error.exitCode === EXIT.unauthenticated;
    return isRefused && this.#user !== undefined ? new CliError(EXIT.usage, error.message, { cause: error }) : error;
  }

  async *#chunks(response: IncomingMessage): AsyncGenerator<Buffer, void> {
    try {
      yield* response as AsyncIterable<Buffer>;
    } catch (error) {
      this.#signal.throwIfAborted();
      throw new CliError(EXIT.unavailable, "the sandbox stopped sending in the middle", {
        hint: "what came before is kept; a file that is being written to, or the end of the sandbox, does this",
        cause: error,
      });
    } finally {
      response.destroy();
    }
  }
}

function timeOf(text: string | undefined): Pick<RemoteEntry, "modifiedS"> {
  const modifiedS = Math.floor(Date.parse(text ?? "") / 1000);
  return Number.isFinite(modifiedS) ? { modifiedS } : {};
}

interface WireEntry {
  readonly type?: string;
  readonly mode?: number;
  readonly size?: string | number;
  readonly modifiedTime?: string;
  readonly symlinkTarget?: string;
}

function percentEncoded(path: string): string {
  return path.replace(/[^\w./~-]/g, (byte) => `%${byte.charCodeAt(0).toString(16).padStart(2, "0")}`);
}

function refusal(status: number, text: string, route: string): CliError {
  let message = `the sandbox answered with HTTP status ${status}`;
  try {
    const parsed = JSON.parse(text) as { message?: unknown };
    if (typeof parsed.message === "string") message = parsed.message;
  } catch {
    // Something that is not the agent answered; the status is all there is to say.
  }
  if (message.startsWith(`no route for`)) {
    return new CliError(EXIT.failure, `the agent in this sandbox is too old for this copy: it has no ${route}`, {
      hint: "a template made anew has one; single files go by `aenv cp - ID:FILE` and `aenv cp ID:FILE HERE`",
    });
  }
  const codes: Partial<Record<number, number>> = {
    400: EXIT.usage,
    401: EXIT.unauthenticated,
    404: EXIT.notFound,
    502: EXIT.unavailable,
    503: EXIT.unavailable,
  };
  return new CliError(codes[status] ?? EXIT.failure, message);
}
