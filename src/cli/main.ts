import { loadCommands } from "./commands/index.ts";
import { BrokenPipeError, CliError, EXIT } from "./errors.ts";
import { type CliIo, flush, writeAll } from "./io.ts";
import { printableLines } from "./output.ts";
import { runProgram } from "./program.ts";

/** Runs one command line to its end and returns the exit code. The one place where errors are shown. Never throws. */
export async function main(argv: readonly string[], io: CliIo): Promise<number> {
  let code: number;
  let failureCode: number | undefined;
  try {
    const word = commandWord(argv);
    // Asked for alone, the version needs no command.
    const commands = word === undefined && argv.some(isVersionOption) ? [] : await loadCommands(word);
    if (commands.length === 1 && commands[0] !== undefined && "run" in commands[0]) {
      failureCode = commands[0].failureCode;
    }
    code = await runProgram(argv, commands, io);
  } catch (error) {
    code = await report(error, failureCode, io);
  }
  await flush(io.stdout);
  await flush(io.stderr);
  return code;
}

async function report(error: unknown, failureCode: number | undefined, io: CliIo): Promise<number> {
  if (error instanceof BrokenPipeError) return EXIT.ok;
  const text = error instanceof CliError ? describe(error) : describeDefect(error);
  await writeAll(io.stderr, text).catch(() => {});
  const code = error instanceof CliError ? error.exitCode : EXIT.failure;
  // The codes from 126 up mean the same for every command.
  return failureCode !== undefined && code < failureCode ? failureCode : code;
}

function describe(error: CliError): string {
  const hint = error.hint === undefined ? "" : `hint: ${printableLines(error.hint)}\n`;
  return `aenv: ${printableLines(error.message)}\n${hint}`;
}

function describeDefect(error: unknown): string {
  const trace = error instanceof Error ? (error.stack ?? error.message) : String(error);
  return `aenv: this is a defect of aenv itself, please report it\n${trace}\n`;
}

const OPTIONS_WITH_VALUE = new Set(["--url", "--key"]);

function isVersionOption(word: string): boolean {
  return word === "--version" || word === "-V";
}

/** The first word that is no global option. */
function commandWord(argv: readonly string[]): string | undefined {
  for (let at = 0; at < argv.length; at += 1) {
    const word = argv[at] ?? "";
    if (OPTIONS_WITH_VALUE.has(word)) at += 1;
    else if (!word.startsWith("-")) return word;
  }
  return undefined;
}
