import type { ApiClient, SandboxHandle } from "./api.ts";
import type { Input, Option } from "./command.ts";
import type { Context } from "./context.ts";
import type { StartProcess } from "./envd.ts";
import { CliError, EXIT } from "./errors.ts";

/** What `exec` and `run` take alike. */
export const EXECUTION_OPTIONS: readonly Option[] = [
  { flags: "-i, --interactive", summary: "hand on standard input even when it is a terminal", kind: "flag" },
  { flags: "-t, --tty", summary: "run it on a terminal, of the size of ours", kind: "flag" },
  { flags: "-e, --env <name=value>", summary: "environment variable; may be repeated", kind: "pairs" },
  { flags: "-w, --cwd <folder>", summary: "where to run it (default: the template's)", kind: "text" },
  { flags: "-u, --user <name>", summary: "who runs it (default: the template's)", kind: "text" },
  { flags: "-n, --null-input", summary: "give it empty standard input, as ssh -n", kind: "flag" },
];

/** One command and how our streams are put on it. */
export interface Execution {
  readonly process: Omit<StartProcess, "terminal">;
  readonly user: string | undefined;
  /** On a terminal of the sandbox. */
  readonly onTerminal: boolean;
  /** What is typed goes to that terminal: our own is in raw mode meanwhile. */
  readonly typed: boolean;
}

/** Checks options and words before anything is started. Throws CliError (usage). `verb`: the command, for messages. */
export function parseExecution({ io }: Context, input: Input, words: readonly string[], verb: string): Execution {
  const [cmd, ...args] = words[0] === "--" ? words.slice(1) : words;
  if (cmd === undefined || cmd === "") {
    throw new CliError(EXIT.usage, "missing command", { hint: `see \`aenv ${verb} --help\`` });
  }
  const onTerminal = input.flag("tty");
  const interactive = input.flag("interactive");
  if (interactive && input.flag("nullInput")) {
    throw new CliError(EXIT.usage, "--interactive and --null-input exclude each other", {
      hint: "leave one of them out",
    });
  }
  const typed = onTerminal && interactive;
  if (typed && !io.stdin.isTTY) {
    throw new CliError(EXIT.usage, "--interactive with --tty needs a terminal, and standard input is none", {
      hint: "leave --tty out: what is piped in is handed on byte for byte",
    });
  }
  const envs = input.pairs("env");
  const cwd = input.text("cwd");
  const handedOn = interactive || io.stdin.isTTY !== true;
  return {
    process: {
      cmd,
      args,
      ...(envs === undefined ? {} : { envs }),
      ...(cwd === undefined ? {} : { cwd }),
      stdin: typed || (handedOn && !onTerminal && !input.flag("nullInput")),
    },
    user: input.text("user"),
    onTerminal,
    typed,
  };
}

export interface ExecuteOptions {
  /** As in InteractOptions; of commands whose terminal we are. */
  readonly timeoutS?: number;
  readonly canComeBack: boolean;
}

/** Runs the command to its end and returns its exit code as a shell would give it. Throws CliError. */
export async function execute(
  context: Context,
  api: ApiClient,
  sandbox: SandboxHandle,
  { process, user, onTerminal, typed }: Execution,
  options: ExecuteOptions,
): Promise<number> {
  const { describeStart, terminalSize } = await import("./envd.ts");
  const target = { api, sandbox, user, canComeBack: options.canComeBack };
  if (!onTerminal) {
    const { runRemote } = await import("./remote.ts");
    return await runRemote(context.io, target, process);
  }
  const { command, terminalEnvs } = await import("./shell/program.ts");
  const onOne = { ...process, envs: { ...terminalEnvs(context.io), ...process.envs } };
  if (!typed) {
    const { runRemote } = await import("./remote.ts");
    const terminal = terminalSize(context.io.stdout);
    return await runRemote(context.io, target, { ...onOne, terminal });
  }
  const { interact } = await import("./shell/interact.ts");
  const program = command(onOne);
  const described = {
    open: (...args: Parameters<typeof program.open>) =>
      program.open(...args).catch((error) => {
        throw describeStart(error, process.cmd);
      }),
  };
  return await interact(context, api, sandbox, described, {
    ...options,
    ...(user === undefined ? {} : { user }),
  });
}
