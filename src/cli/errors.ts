import type { ErrorKind } from "#domain";

/**
 * What the CLI says when something went wrong, and the exit code that goes with it. Commands throw; `main.ts` is the only
 * place that prints an error and turns it into a code.
 */
export const EXIT = {
  ok: 0,
  failure: 1,
  usage: 2,
  notFound: 3,
  conflict: 4,
  unauthenticated: 5,
  unavailable: 6,
  /** `exec` only: aenv itself failed; every other code is the remote command's. */
  execFailed: 125,
  notExecutable: 126,
  commandNotFound: 127,
  interrupted: 130,
  brokenPipe: 141,
} as const;

/** The table `aenv --help` prints; docs/cli.md has the same. */
export const EXIT_CODE_HELP = `Exit codes:
  0    done (also when there was nothing left to do)
  1    failure
  2    usage: the command line, or a value the server calls invalid
  3    not found
  4    conflict: the sandbox or template is in another state
  5    no API key, or one the server does not accept; for pull: the registry's
  6    server or sandbox not reachable, busy, or too slow
  130  interrupted; on a terminal: the sandbox was paused or went away
  exec, run, attach: the remote command's own code; 128+n when signal n ended it; 125 when aenv itself failed
  start, connect: the shell's own code`;

export class CliError extends Error {
  readonly exitCode: number;
  /** The next thing to type or to check, shown on a line of its own. */
  readonly hint: string | undefined;

  constructor(exitCode: number, message: string, options: { hint?: string | undefined; cause?: unknown } = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = "CliError";
    this.exitCode = exitCode;
    this.hint = options.hint;
  }
}

/** Whoever read our standard output has gone (`aenv ls | head -1`): nothing left to say, and no error either. */
export class BrokenPipeError extends Error {
  constructor() {
    super("standard output was closed");
    this.name = "BrokenPipeError";
  }
}

/** A refusal of the control API: `status` and the message of its JSON body. */
export class ApiError extends CliError {
  readonly status: number;

  constructor(status: number, message: string, hint = hintOfStatus(status)) {
    super(exitCodeOfStatus(status), message, { hint });
    this.name = "ApiError";
    this.status = status;
  }
}

function exitCodeOfStatus(status: number): number {
  if (status === 400 || status === 413 || status === 422) return EXIT.usage;
  if (status === 401 || status === 403) return EXIT.unauthenticated;
  if (status === 404) return EXIT.notFound;
  if (status === 409) return EXIT.conflict;
  if (status === 408 || status === 429 || (status >= 502 && status <= 504)) return EXIT.unavailable;
  return EXIT.failure;
}

/** What a failed build says about itself. */
export const EXIT_OF_KIND: Readonly<Record<ErrorKind, number>> = {
  invalid: EXIT.usage,
  unauthenticated: EXIT.unauthenticated,
  forbidden: EXIT.unauthenticated,
  "not-found": EXIT.notFound,
  conflict: EXIT.conflict,
  exhausted: EXIT.unavailable,
  unavailable: EXIT.unavailable,
  deadline: EXIT.unavailable,
  internal: EXIT.failure,
};

function hintOfStatus(status: number): string | undefined {
  if (status === 403) return "run `aenv auth` to log in with another key";
  if (status === 429 || status === 503) return "the server is busy: try again in a moment";
  return undefined;
}

/** Codes of the Connect protocol that lead to something else than plain failure. */
export type RpcCode =
  | "canceled"
  | "unknown"
  | "invalid_argument"
  | "deadline_exceeded"
  | "not_found"
  | "already_exists"
  | "permission_denied"
  | "resource_exhausted"
  | "failed_precondition"
  | "aborted"
  | "out_of_range"
  | "unimplemented"
  | "internal"
  | "unavailable"
  | "data_loss"
  | "unauthenticated";

/** A call to the agent inside a sandbox failed. `answered`: the agent itself said so; otherwise it was never reached, or
 *  the connection broke, and whether the call took effect is unknown. */
export class RpcError extends CliError {
  readonly code: RpcCode;
  readonly answered: boolean;

  constructor(code: RpcCode, message: string, options: { answered: boolean; cause?: unknown }) {
    super(RPC_EXIT[code] ?? EXIT.failure, message, { cause: options.cause });
    this.name = "RpcError";
    this.code = code;
    this.answered = options.answered;
  }
}

const RPC_EXIT: Partial<Record<RpcCode, number>> = {
  invalid_argument: EXIT.usage,
  not_found: EXIT.notFound,
  unauthenticated: EXIT.unauthenticated,
  permission_denied: EXIT.unauthenticated,
  failed_precondition: EXIT.conflict,
  unavailable: EXIT.unavailable,
  deadline_exceeded: EXIT.unavailable,
  resource_exhausted: EXIT.unavailable,
};
