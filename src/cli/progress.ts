import type { BuildProgress } from "./api.ts";
import { type CliIo, writeAll } from "./io.ts";
import { formatBytes, formatDuration, printable } from "./output.ts";

const PLAIN_EVERY_MS = 5000;
const BAR_WIDTH = 24;

/**
 * Shows on standard error how far a build is: one line that changes on a terminal; elsewhere a plain line for each new
 * phase and one every few seconds. Log lines go above it.
 */
export class ProgressDisplay {
  readonly #io: CliIo;
  readonly #nowMs: () => number;
  readonly #startedMs: number;
  readonly #live: boolean;
  #shown = false;
  #lastPhase = "";
  #lastPlainMs = Number.NEGATIVE_INFINITY;

  constructor(io: CliIo, nowMs: () => number = Date.now) {
    this.#io = io;
    this.#nowMs = nowMs;
    this.#startedMs = nowMs();
    this.#live = io.stderr.isTTY === true && io.env.TERM !== "dumb";
  }

  async log(message: string): Promise<void> {
    await this.clear();
    await this.#write(`${printable(message)}\n`);
  }

  async update(progress: BuildProgress): Promise<void> {
    const nowMs = this.#nowMs();
    const line = describeProgress(progress, nowMs - this.#startedMs);
    if (this.#live) {
      const width = this.#io.stderr.columns ?? 80;
      const bar = isDownload(progress) && width > line.length + BAR_WIDTH + 4 ? `${drawBar(progress)} ` : "";
      await this.#write(`\r\x1b[K${`${bar}${line}`.slice(0, width - 1)}`);
      this.#shown = true;
      return;
    }
    if (progress.phase === this.#lastPhase && nowMs - this.#lastPlainMs < PLAIN_EVERY_MS) return;
    this.#lastPhase = progress.phase;
    this.#lastPlainMs = nowMs;
    await this.#write(`${line}\n`);
  }

  /** Takes the changing line away. */
  async clear(): Promise<void> {
    if (this.#shown) await this.#write("\r\x1b[K");
    this.#shown = false;
  }

  async #write(text: string): Promise<void> {
    // Nobody watching is no reason to stop a pull.
    await writeAll(this.#io.stderr, text).catch(() => {});
  }
}

/** `downloading 120 MiB of 512 MiB (23%), 2 of 5 layers, 41s`; in other phases the bytes are those of a download that is over. */
export function describeProgress(progress: BuildProgress, elapsedMs: number): string {
  const { phase, doneBytes, totalBytes, layersDone, layersTotal } = progress;
  if (!isDownload(progress)) return `${printable(phase)}, ${formatDuration(elapsedMs)}`;
  let bytes = "";
  if (totalBytes > 0) {
    const percent = Math.min(100, Math.floor((100 * doneBytes) / totalBytes));
    bytes = ` ${formatBytes(doneBytes)} of ${formatBytes(totalBytes)} (${percent}%)`;
  } else if (doneBytes > 0) bytes = ` ${formatBytes(doneBytes)}`;
  const layers = layersTotal > 0 ? `, ${layersDone} of ${layersTotal} layers` : "";
  return `${printable(phase)}${bytes}${layers}, ${formatDuration(elapsedMs)}`;
}

function isDownload({ phase }: BuildProgress): boolean {
  return phase === "downloading";
}

function drawBar({ doneBytes, totalBytes }: BuildProgress): string {
  const share = totalBytes > 0 ? Math.min(1, doneBytes / totalBytes) : 0;
  const full = Math.round(share * BAR_WIDTH);
  return `[${"#".repeat(full)}${".".repeat(BAR_WIDTH - full)}]`;
}

const QUIET_MS = 1000;

/** Shows on a terminal what is waited for, from the second second on; elsewhere nothing. The line is gone afterwards. */
export async function whileWaiting<T>(io: CliIo, what: string, work: Promise<T>): Promise<T> {
  if (io.stderr.isTTY !== true || io.env.TERM === "dumb") return await work;
  const startedMs = Date.now();
  let shown = false;
  const ticker = setInterval(() => {
    shown = true;
    io.stderr.write(`\r\x1b[K${printable(what)}, ${formatDuration(Date.now() - startedMs)}`);
  }, QUIET_MS);
  try {
    return await work;
  } finally {
    clearInterval(ticker);
    if (shown) await writeAll(io.stderr, "\r\x1b[K").catch(() => {});
  }
}

const TICK_MS = 200;

/** Shows on standard error how far a transfer is, from the second second on: a line that changes on a terminal, else a plain
 *  one every few seconds. */
export class TransferDisplay implements AsyncDisposable {
  readonly #io: CliIo;
  readonly #what: string;
  readonly #startedMs = Date.now();
  readonly #live: boolean;
  readonly #ticker: NodeJS.Timeout;
  #lastMs = 0;
  #shown = false;
  files = 0;
  bytes = 0;
  /** 0 while unknown. */
  totalBytes = 0;

  /** `what`: the action, like `copying`. */
  constructor(io: CliIo, what: string) {
    this.#io = io;
    this.#what = what;
    this.#live = io.stderr.isTTY === true && io.env.TERM !== "dumb";
    this.#ticker = setInterval(() => this.#tick(), TICK_MS);
  }

  describe(): string {
    const { bytes, totalBytes, files } = this;
    const elapsedMs = Math.max(1, Date.now() - this.#startedMs);
    const percent = totalBytes > 0 ? ` of ${formatBytes(totalBytes)} (${Math.floor((100 * bytes) / totalBytes)}%)` : "";
    const count = files > 1 ? `, ${files} files` : "";
    const speed = formatBytes(Math.floor((bytes * 1000) / elapsedMs));
    return `${this.#what} ${formatBytes(bytes)}${percent}${count}, ${speed}/s, ${formatDuration(elapsedMs)}`;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    clearInterval(this.#ticker);
    if (this.#shown) await writeAll(this.#io.stderr, "\r\x1b[K").catch(() => {});
  }

  #tick(): void {
    const nowMs = Date.now();
    const everyMs = this.#live ? TICK_MS : PLAIN_EVERY_MS;
    if (nowMs - this.#startedMs < QUIET_MS || nowMs - Math.max(this.#startedMs, this.#lastMs) < everyMs) return;
    this.#lastMs = nowMs;
    if (!this.#live) {
      this.#io.stderr.write(`${this.describe()}\n`);
      return;
    }
    this.#shown = true;
    this.#io.stderr.write(`\r\x1b[K${this.describe().slice(0, (this.#io.stderr.columns ?? 80) - 1)}`);
  }
}
