import type { Context } from "./context.ts";

/**
 * A command is a value: what it is called, what it takes, and what it does. `program.ts` turns it into the command line.
 * `run` returns the exit code (nothing = 0) and throws CliError for every failure.
 */
export interface Command {
  readonly name: string;
  readonly aliases: readonly string[];
  /** One line, lower case, no full stop. */
  readonly summary: string;
  readonly args: readonly Argument[];
  readonly options: readonly Option[];
  /** Lines to copy, shown by --help. */
  readonly examples: readonly string[];
  /** Further help, shown below the options. */
  readonly details?: string;
  /** Everything after the first argument belongs to it, options too. */
  readonly passThrough?: boolean;
  /** Exit code of every failure of aenv itself, where the other codes are somebody else's. */
  readonly failureCode?: number;
  run(context: Context, input: Input): Promise<number | undefined>;
}

/** Commands below one word: `aenv template list`. */
export interface CommandGroup {
  readonly name: string;
  readonly aliases: readonly string[];
  readonly summary: string;
  readonly commands: readonly Command[];
}

export interface Argument {
  readonly name: string;
  readonly summary: string;
  readonly many?: boolean;
  readonly optional?: boolean;
}

export interface Option {
  /** As shown and parsed: `-t, --timeout <seconds>`. */
  readonly flags: string;
  readonly summary: string;
  /** What the value is: yes or no, text, a whole number, or NAME=VALUE (may be repeated). */
  readonly kind: "flag" | "text" | "number" | "pairs";
  readonly min?: number;
  readonly max?: number;
}

/** The checked values of one command line. */
export class Input {
  readonly args: readonly string[];
  readonly #options: Readonly<Record<string, unknown>>;

  constructor(args: readonly string[], options: Readonly<Record<string, unknown>>) {
    this.args = args;
    this.#options = options;
  }

  /** A required argument by its place. */
  arg(place: number): string {
    return this.args[place] ?? "";
  }

  flag(name: string): boolean {
    return this.#options[name] === true;
  }

  text(name: string): string | undefined {
    const value = this.#options[name];
    return typeof value === "string" ? value : undefined;
  }

  number(name: string): number | undefined {
    const value = this.#options[name];
    return typeof value === "number" ? value : undefined;
  }

  pairs(name: string): Readonly<Record<string, string>> | undefined {
    const value = this.#options[name];
    return typeof value === "object" ? (value as Record<string, string>) : undefined;
  }
}
