import { type CliIo, wantsColor, writeAll } from "./io.ts";
import { formatJson } from "./json.ts";

export interface Column<Row> {
  readonly title: string;
  readonly value: (row: Row) => string;
  readonly right?: boolean;
}

/** Results go to standard output, everything said beside them to standard error. */
export class Output {
  readonly #io: CliIo;

  constructor(io: CliIo) {
    this.#io = io;
  }

  /** `signal` ends the wait for a reader; so below. */
  async line(text: string, signal?: AbortSignal): Promise<void> {
    await writeAll(this.#io.stdout, `${text}\n`, signal);
  }

  async json(value: unknown): Promise<void> {
    await this.line(harmless(formatJson(value)));
  }

  /** One value a line. */
  async jsonLines(values: readonly unknown[], signal?: AbortSignal): Promise<void> {
    await this.line(values.map((value) => harmless(JSON.stringify(value))).join("\n"), signal);
  }

  /** A list in the form that was asked for: as JSON, by what other commands take of each, or as a table. */
  async list<Row>(
    rows: readonly Row[],
    {
      json,
      quiet,
      columns,
    }: { json: boolean; quiet?: ((row: Row) => string) | undefined; columns: readonly Column<Row>[] },
  ): Promise<void> {
    if (json) await this.json(rows);
    else if (quiet === undefined) await this.table(columns, rows);
    else if (rows.length > 0) await this.line(rows.map(quiet).join("\n"));
  }

  /** The same columns on a terminal and in a pipe; only the colour of the titles differs. */
  async table<Row>(columns: readonly Column<Row>[], rows: readonly Row[]): Promise<void> {
    const cells = rows.map((row) => columns.map((column) => printable(column.value(row))));
    const widths = columns.map((column, at) =>
      Math.max(column.title.length, ...cells.map((row) => row[at]?.length ?? 0)),
    );
    const format = (row: readonly string[]): string =>
      row
        .map((cell, at) => (columns[at]?.right ? cell.padStart(widths[at] ?? 0) : cell.padEnd(widths[at] ?? 0)))
        .join("  ")
        .trimEnd();
    const title = format(columns.map((column) => column.title));
    const lines = [wantsColor(this.#io) ? `\x1b[1m${title}\x1b[0m` : title, ...cells.map(format)];
    await this.line(lines.join("\n"));
  }

  /** A remark for the person; nobody parses it, so a reader that has gone is no reason to stop. */
  async note(text: string): Promise<void> {
    await writeAll(this.#io.stderr, `${printableLines(text)}\n`).catch(() => {});
  }
}

/** Names come from other people: what steers a terminal, or turns the order of what is read, must not reach it. */
export function printable(text: string): string {
  return text.replace(/[\p{Cc}\u202a-\u202e\u2066-\u2069]/gu, "?");
}

/** The same value to whoever parses it. JSON itself escapes the control characters below U+0020 only. */
function harmless(json: string): string {
  return json.replace(
    /[\x7f-\x9f\u202a-\u202e\u2066-\u2069]/g,
    (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"] as const;

export function formatBytes(bytes: number): string {
  let value = bytes;
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const digits = unit === 0 || value >= 100 || Number.isInteger(value) ? 0 : 1;
  return `${value.toFixed(digits)} ${UNITS[unit]}`;
}

/** `3m 20s`: the two largest units. */
export function formatDuration(ms: number): string {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 60) return `${seconds}s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes}m ${seconds % 60}s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours}h ${minutes % 60}m`;
  return `${Math.floor(hours / 24)}d ${hours % 24}h`;
}

/** Local time without fraction: `2026-11-30 16:33:00`. */
export function formatTime(at: string | Date): string {
  const date = new Date(at);
  if (Number.isNaN(date.getTime())) return "-";
  const two = (value: number): string => String(value).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

/** The same for a text of several lines. */
export function printableLines(text: string): string {
  return text.split("\n").map(printable).join("\n");
}

/** As a shell would take them. */
export function quoteWords(words: readonly string[]): string {
  return words.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`)).join(" ");
}
