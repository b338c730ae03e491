import type { Duplex } from "node:stream";
import type { SandboxHandle } from "./api.ts";
import { agentHeaders } from "./envd.ts";
import { CliError, EXIT } from "./errors.ts";
import { type HttpClient, readBody } from "./http.ts";

const OPEN_TIMEOUT_MS = 30_000;
const MAX_ANSWER_BYTES = 64 * 1024;

/** Why there is no tunnel. */
export class TunnelError extends CliError {
  /** closed: nobody listens there. away: the sandbox does not run. unable: it can never be, in this sandbox. */
  readonly reason: "closed" | "away" | "unable" | "other";

  constructor(reason: TunnelError["reason"], message: string, hint?: string) {
    super(reason === "unable" ? EXIT.failure : EXIT.unavailable, message, { hint });
    this.name = "TunnelError";
    this.reason = reason;
  }
}

/**
 * A connection to a port inside the sandbox, on its loopback too: an upgraded request to its agent, after which the bytes are the
 * service's. `head`: what the service has said already. Throws TunnelError, and CliError (unavailable) for the server.
 */
export async function openTunnel(
  http: HttpClient,
  sandbox: SandboxHandle,
  port: number,
  signal: AbortSignal,
): Promise<{ readonly socket: Duplex; readonly head: Buffer }> {
  const answer = await http.upgrade({
    path: `/tunnel?port=${port}`,
    protocol: "aenv-tcp",
    headers: agentHeaders(sandbox),
    signal,
    timeoutMs: OPEN_TIMEOUT_MS,
  });
  if ("socket" in answer) return answer;
  const status = answer.response.statusCode ?? 0;
  const text = (await readBody(answer.response, MAX_ANSWER_BYTES)).toString("utf8");
  throw refusal(status, text, sandbox.sandboxID, port);
}

function refusal(status: number, text: string, id: string, port: number): TunnelError {
  let body: { message?: unknown; reason?: unknown } = {};
  try {
    body = JSON.parse(text);
  } catch {
    // Something that is not the agent answered; the status is all there is to say.
  }
  const message = typeof body.message === "string" ? body.message : `HTTP status ${status}`;
  if (body.reason === "not-open") return new TunnelError("closed", `nothing listens on port ${port} in ${id}`);
  if (message.startsWith("no route for")) {
    return new TunnelError(
      "unable",
      `the agent in ${id} is too old to forward ports`,
      "pull its image again, and start from that",
    );
  }
  if (status === 502 && body.reason === undefined) return new TunnelError("away", `${id} does not run`);
  return new TunnelError("other", `no connection to port ${port} in ${id}: ${message}`);
}
