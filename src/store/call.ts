import { Code, ConnectError } from "@connectrpc/connect";
import { AenvError, type ErrorKind } from "#domain";
import { hasCode } from "#lib/files";

const KINDS: Partial<Record<Code, ErrorKind>> = {
  [Code.InvalidArgument]: "invalid",
  [Code.FailedPrecondition]: "conflict",
  [Code.NotFound]: "not-found",
  [Code.Unauthenticated]: "forbidden",
  [Code.PermissionDenied]: "forbidden",
  [Code.ResourceExhausted]: "exhausted",
  [Code.Unavailable]: "unavailable",
  [Code.Aborted]: "unavailable",
  [Code.DeadlineExceeded]: "deadline",
};

/** How long a call waits for a blobd that is being restarted. */
const RESTART_GRACE_MS = 10_000;

/** Every call of blobd may be repeated, so a blobd that is being restarted is waited for. */
export async function call<T>(work: () => Promise<T>): Promise<T> {
  const giveUpAtMs = performance.now() + RESTART_GRACE_MS;
  for (let delayMs = 20; ; delayMs = Math.min(delayMs * 2, 500)) {
    try {
      return await work();
    } catch (error) {
      if (!isConnectionLoss(error) || performance.now() > giveUpAtMs) throw translate(error);
    }
    await new Promise((resolve) => setTimeout(resolve, delayMs));
  }
}

const LOST = ["ECONNREFUSED", "ENOENT", "ECONNRESET", "EPIPE", "UND_ERR_SOCKET"];

function isConnectionLoss(error: unknown): boolean {
  return hasCode(ConnectError.from(error).cause, ...LOST);
}

function translate(error: unknown): AenvError {
  const connect = ConnectError.from(error);
  return new AenvError(KINDS[connect.code] ?? "internal", connect.rawMessage, { cause: error });
}
