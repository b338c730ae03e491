import { loadCommands } from "./commands/index.ts";
import { BrokenPipeError, CliError, EXIT } from "./errors.ts";
import { type CliIo, ENDING_CODES, flush, onEnding, UNREAD_MS, writeAll } from "./io.ts";
import { printableLines } from "./output.ts";
import { runProgram } from "./program.ts";

/** Runs one command line to its end and returns the exit code. The one place where errors are shown. Never throws. */
export async function main(argv: readonly string[], io: CliIo): Promise<number> {
  // From the end of the command on: until then signals are its own.
  const leave = new AbortController();
  let late: NodeJS.Timeout | undefined;
  // Who asked us to end has not to wait for a reader that stands still. What else was written has been taken by now.
  const giveUp = (exitCode: number): void => {
    if (ENDED.has(exitCode)) late ??= setTimeout(() => leave.abort(), UNREAD_MS);
  };
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
    if (error instanceof CliError) giveUp(error.exitCode);
    code = await report(error, failureCode, io, leave.signal);
  }
  giveUp(code);
  const forget = onEnding(io, () => leave.abort());
  await flush(io.stdout, leave.signal);
  await flush(io.stderr, leave.signal);
  forget();
  clearTimeout(late);
  return code;
}

const ENDED: ReadonlySet<number> = new Set(Object.values(ENDING_CODES));

async function report(error: unknown, failureCode: number | undefined, io: CliIo, leave: AbortSignal): Promise<number> {
  if (error instanceof BrokenPipeError) return EXIT.ok;
  const text = error instanceof CliError ? describe(error) : describeDefect(error);
  await writeAll(io.stderr, text, leave).catch(() => {});
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
