import { readFileSync } from "node:fs";
import {
  Command as CommanderCommand,
  CommanderError,
  InvalidArgumentError,
  type Command as Parser,
  Option as ParserOption,
} from "commander";
import { type Command, type CommandGroup, Input, type Option } from "./command.ts";
import { Context } from "./context.ts";
import { CliError, EXIT, EXIT_CODE_HELP } from "./errors.ts";
import { type CliIo, writeAll } from "./io.ts";

/** How wide help is where there is no terminal to ask. */
const HELP_COLUMNS = 110;

/** Parses `argv` (without node and script) and runs the command it names. Returns the exit code; throws what the command
 *  throws, and CliError (usage) for a command line that is wrong. */
export async function runProgram(
  argv: readonly string[],
  commands: readonly (Command | CommandGroup)[],
  io: CliIo,
): Promise<number> {
  const printed: { stream: "stdout" | "stderr"; text: string }[] = [];
  let run: (() => Promise<number>) | undefined;
  const width = Math.max(80, io.stdout.columns ?? HELP_COLUMNS);
  const program = configure(new CommanderCommand("aenv"), printed)
    .configureOutput({ getOutHelpWidth: () => width, getErrHelpWidth: () => width })
    .description("Isolated Linux sandboxes: start, enter, pause, resume and fork them.")
    .usage("[options] <command> [arguments]")
    .version(`aenv ${version()}`, "-V, --version", "print the version")
    .enablePositionalOptions()
    .addHelpText("after", ROOT_HELP);
  addGlobalOptions(program);
  for (const command of commands) {
    addCommand(program, command, printed, (chosen, args, options) => {
      run = async () => await runCommand(chosen, args, { ...program.opts(), ...options }, io);
    });
  }
  try {
    program.parse([...argv], { from: "user" });
  } catch (error) {
    if (!(error instanceof CommanderError)) throw error;
    for (const { stream, text } of printed) {
      if (stream === "stdout") await writeAll(io.stdout, text);
    }
    if (error.exitCode === 0) return EXIT.ok;
    throw usageError(error, printed, program, argv);
  }
  return run === undefined ? EXIT.ok : await run();
}

async function runCommand(
  command: Command,
  args: readonly string[],
  options: Readonly<Record<string, unknown>>,
  io: CliIo,
): Promise<number> {
  const context = new Context(io, {
    json: options.json === true,
    url: options.url as string | undefined,
    key: options.key as string | undefined,
  });
  try {
    return (await command.run(context, new Input(args, options))) ?? EXIT.ok;
  } finally {
    context.close();
  }
}

type Chosen = (command: Command, args: readonly string[], options: Readonly<Record<string, unknown>>) => void;

function addCommand(parent: Parser, command: Command | CommandGroup, printed: Printed, chosen: Chosen): void {
  const parser = configure(parent.command(command.name), printed)
    .aliases([...command.aliases])
    .description(command.summary);
  addGlobalOptions(parser);
  if ("commands" in command) {
    parser.enablePositionalOptions();
    for (const inner of command.commands) addCommand(parser, inner, printed, chosen);
    return;
  }
  for (const argument of command.args) {
    const name = argument.many ? `${argument.name}...` : argument.name;
    parser.argument(argument.optional ? `[${name}]` : `<${name}>`, argument.summary);
  }
  for (const option of command.options) parser.addOption(parserOption(option));
  if (command.passThrough) parser.passThroughOptions();
  parser.addHelpText("after", helpTail(command));
  parser.action(() => {
    const outer = parent.parent === null ? {} : parent.opts();
    // Commander gives a variadic argument as an array in its place.
    const words = parser.processedArgs.flat().filter((word) => word !== undefined) as string[];
    chosen(command, words, { ...outer, ...parser.opts() });
  });
}

type Printed = { stream: "stdout" | "stderr"; text: string }[];

/** Commander prints and exits by itself; here it collects and throws, so that there is one place that does either. */
function configure(parser: Parser, printed: Printed): Parser {
  return parser
    .exitOverride()
    .helpOption("-h, --help", "show this help")
    .helpCommand(false)
    .configureOutput({
      writeOut: (text) => void printed.push({ stream: "stdout", text }),
      writeErr: (text) => void printed.push({ stream: "stderr", text }),
      outputError: (text, write) => write(text),
    });
}

function addGlobalOptions(parser: Parser): void {
  parser
    .addOption(new ParserOption("--url <url>", "server to use (default: AENV_URL, else as saved by `aenv auth`)"))
    .addOption(new ParserOption("--key <key>", "API key to use (default: AENV_API_KEY, else as saved)"))
    .addOption(new ParserOption("--json", "print the API's objects as JSON"));
}

function parserOption(option: Option): ParserOption {
  const made = new ParserOption(option.flags, option.summary);
  if (option.kind === "number") made.argParser((text: string) => parseNumber(text, option));
  if (option.kind === "pairs") made.argParser(parsePair);
  return made;
}

function parseNumber(text: string, option: Option): number {
  const { min = 0, max = Number.MAX_SAFE_INTEGER } = option;
  const value = Number(text);
  if (!/^\d+$/.test(text) || value < min || value > max) {
    const range = option.max === undefined ? `from ${min} up` : `from ${min} to ${max}`;
    throw new InvalidArgumentError(`It has to be a whole number ${range}.`);
  }
  return value;
}

function parsePair(text: string, before: Readonly<Record<string, string>> | undefined): Record<string, string> {
  const at = text.indexOf("=");
  if (at < 1 || text.includes("\0")) throw new InvalidArgumentError("It has to be NAME=VALUE.");
  return { ...before, [text.slice(0, at)]: text.slice(at + 1) };
}

function helpTail(command: Command): string {
  const examples = command.examples.map((line) => `  ${line}`).join("\n");
  return `${command.details === undefined ? "" : `\n${command.details}\n`}\nExamples:\n${examples}`;
}

const ROOT_HELP = `
${EXIT_CODE_HELP}

Environment: AENV_URL, AENV_API_KEY, XDG_CONFIG_HOME, NO_COLOR. A flag wins over the environment, the environment over
what \`aenv auth\` saved; without any of them the server is http://127.0.0.1:8000.

Examples:
  aenv auth                     log in
  aenv start base               start a sandbox and enter it
  aenv exec ID python3 -V       run a command in it
  aenv run base -- nproc        the same in a sandbox of its own, which ends with it
  aenv cp src ID:/srv/app       copy a folder into it
  aenv fork ID --count 3        three copies of it, as it is now
  aenv snapshot ID --name done  this moment of it under a name: aenv start done

\`aenv <command> --help\` says more about each.`;

function usageError(error: CommanderError, printed: Printed, program: Parser, argv: readonly string[]): CliError {
  const said = printed
    .filter(({ stream }) => stream === "stderr")
    .map(({ text }) => text)
    .join("");
  if (error.code === "commander.help") {
    // A word is missing: the help itself is the answer.
    return new CliError(EXIT.usage, `a command is missing\n\n${said.trimEnd()}`);
  }
  const [first = error.message, ...more] = said
    .trim()
    .replace(/^error: /, "")
    .split("\n");
  const word = program.commands.find((command) => argv.includes(command.name()))?.name();
  const help = `aenv ${word === undefined ? "" : `${word} `}--help`;
  return new CliError(EXIT.usage, [first, ...more].join(" "), { hint: `see \`${help}\`` });
}

function version(): string {
  const manifest = JSON.parse(readFileSync(new URL("../../package.json", import.meta.url), "utf8"));
  return (manifest as { version: string }).version;
}
