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
