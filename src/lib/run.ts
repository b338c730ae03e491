/**
 * Child processes. Servers start them through the keeper (a start from a large Node process stops its event loop for
 * milliseconds); tools and tests start them directly. Always an argument array, never a shell.
 */
export interface CommandRunner {
  /** Runs a command to its end. Never throws for what the command did; throws when it could not be started.
   *  `options.check` (default true) turns a non-zero exit into a CommandError. */
  run(argv: readonly string[], options?: RunOptions): Promise<CommandResult>;
}

export interface RunOptions {
  readonly check?: boolean;
  readonly env?: Readonly<Record<string, string>>;
  readonly cwd?: string;
  readonly stdin?: string | Uint8Array;
  readonly timeoutMs?: number;
  /** Output of the command and of all it leaves running goes to this bounded file instead of the result. */
  readonly logFile?: string;
  /** Output is /dev/null; for commands that leave children behind. */
  readonly discardOutput?: boolean;
  readonly netnsPath?: string;
}

export interface CommandResult {
  /** -1 when ended by a signal. */
  readonly exitCode: number;
  readonly signal: number;
  readonly stdout: Uint8Array;
  readonly stderr: Uint8Array;
  readonly timedOut: boolean;
  /** There was more output than the runner keeps (8 MiB of each stream). */
  readonly truncated?: boolean;
}

export class CommandError extends Error {
  readonly argv: readonly string[];
  readonly result: CommandResult;
  constructor(argv: readonly string[], result: CommandResult) {
    const said = new TextDecoder().decode(result.stderr).trim().slice(-2000);
    const how = result.timedOut
      ? "timed out"
      : result.signal
        ? `was ended by signal ${result.signal}`
        : `exited with ${result.exitCode}`;
    super(`${argv.slice(0, 8).join(" ")} ${how}${said === "" ? "" : `: ${said}`}`);
    this.name = "CommandError";
    this.argv = argv;
    this.result = result;
  }
}

/** Whoever runs commands for this process went away meanwhile: the command may have been done, or go on. */
export class RunnerLostError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = "RunnerLostError";
  }
}

/** Tells when processes end, also such as are no children of the caller. */
export interface ProcessWatcher {
  /** Settles when the process with this pid and start time (field 22 of /proc/PID/stat; 0 = whoever has the pid now) is
   *  gone; at once when it is gone already. */
  exited(pid: number, startTicks: bigint): Promise<ProcessExit>;
}

export interface ProcessExit {
  /** -1: unknown or ended by a signal. */
  readonly exitCode: number;
  readonly signal: number;
  readonly atMs: number;
}
