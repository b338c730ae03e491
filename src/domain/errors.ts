/**
 * What can go wrong, said by what the caller can do about it. Nine kinds; context travels in `cause`.
 * The API maps kinds to HTTP status in one table (`src/api/errors.ts`), the CLI to exit codes in one table.
 */
export type ErrorKind =
  | "invalid" // the request itself is wrong; sending it again cannot help
  | "unauthenticated" // no key, or a wrong one
  | "forbidden" // the key is right, the thing is not allowed
  | "not-found"
  | "conflict" // the thing is in a state that does not allow it
  | "exhausted" // a limit of the node or the caller is reached; later may help
  | "unavailable" // a part that is needed is not there now; later may help
  | "deadline" // it took longer than allowed
  | "internal"; // a defect of ours

export interface AenvErrorOptions {
  readonly cause?: unknown;
  /** What the person can do next: a command, a setting. Shown after the message. */
  readonly hint?: string;
  /** The request field the message is about (`timeout`, `network.denyOut[2]`). */
  readonly field?: string;
  /** Machine-readable detail beside the kind, where clients match one (E2B's `error_code`). */
  readonly code?: string;
}

export class AenvError extends Error {
  readonly kind: ErrorKind;
  readonly hint: string | undefined;
  readonly field: string | undefined;
  readonly code: string | undefined;

  constructor(kind: ErrorKind, message: string, options: AenvErrorOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = "AenvError";
    this.kind = kind;
    this.hint = options.hint;
    this.field = options.field;
    this.code = options.code;
  }
}

/** The kind of any thrown value; what is not ours is a defect. */
export function errorKind(error: unknown): ErrorKind {
  return error instanceof AenvError ? error.kind : "internal";
}

/** How a server's log tells of it: a defect as an error; as a warning what was not there or not in time, which may be the host's fault.
 *  undefined: whoever asked can mend it, and is told. */
export function logLevelOf(error: unknown): "error" | "warn" | undefined {
  const kind = errorKind(error);
  if (kind === "internal") return "error";
  return kind === "unavailable" || kind === "deadline" ? "warn" : undefined;
}

/** E2B's sentence for a sandbox that is not there; clients match its tail. */
export function sandboxNotFound(id: string): AenvError {
  return new AenvError("not-found", `Sandbox "${id}" doesn't exist or you don't have access to it`);
}
