import { appendFile, mkdir, readdir, readFile, rm, stat, truncate } from "node:fs/promises";
import { join } from "node:path";
import { isMissing } from "#lib/files";
import {
  isFull,
  type Line,
  overlapping,
  parseLines,
  type Segment,
  segmentFirstId,
  segmentName,
  surplus,
  wholeBytes,
} from "./segments.ts";

/**
 * A bounded log of lines in a folder of its sandbox. One call at a time: that is the caller's to see to. Nothing is synced:
 * it outlives our processes, and what a crash of the host leaves is read as far as it is whole.
 */
export class Ring {
  readonly #dir: string;
  readonly #kind: string;
  /** As on disk; undefined: not looked yet, or a write has failed. */
  #known: { readonly segments: Segment[]; lastId: number } | undefined;

  constructor(dir: string, kind: string) {
    this.#dir = dir;
    this.#kind = kind;
  }

  /** 0: there is none. */
  async lastId(): Promise<number> {
    return (await this.#look()).lastId;
  }

  async bytes(): Promise<number> {
    return (await this.#look()).segments.reduce((sum, { bytes }) => sum + bytes, 0);
  }

  /** Adds lines with growing ids, all above `lastId`. */
  async append(lines: readonly Line[]): Promise<void> {
    const first = lines[0];
    if (first === undefined) return;
    const known = await this.#look();
    let segment = known.segments.at(-1);
    if (segment === undefined) await mkdir(this.#dir, { recursive: true, mode: 0o700 });
    if (segment === undefined || isFull(segment)) {
      segment = { firstId: first.id, bytes: 0 };
      known.segments.push(segment);
    }
    const text = lines.map((line) => `${line.text}\n`).join("");
    // Until it is written whole, nobody knows how the file ends.
    this.#known = undefined;
    await appendFile(this.#path(segment), text, { mode: 0o600 });
    known.segments[known.segments.length - 1] = { ...segment, bytes: segment.bytes + Buffer.byteLength(text) };
    known.lastId = lines.at(-1)?.id ?? known.lastId;
    for (const old of surplus(known.segments)) {
      await rm(this.#path(old), { force: true });
      known.segments.shift();
    }
    this.#known = known;
  }

  /** Lines with ids of a range, both ends included, a file at a time; the newest first with `backward`. */
  async *read(fromId: number, toId: number, { backward = false } = {}): AsyncGenerator<Line[]> {
    const wanted = overlapping((await this.#look()).segments, fromId, toId);
    for (const segment of backward ? wanted.toReversed() : wanted) {
      const lines = parseLines(await readFile(this.#path(segment), "utf8"));
      const inRange = lines.filter(({ id }) => id >= fromId && id <= toId);
      yield backward ? inRange.reverse() : inRange;
    }
  }

  #path(segment: Segment): string {
    return join(this.#dir, segmentName(this.#kind, segment.firstId));
  }

  async #look(): Promise<{ readonly segments: Segment[]; lastId: number }> {
    if (this.#known !== undefined) return this.#known;
    const segments: Segment[] = [];
    for (const name of await namesIn(this.#dir)) {
      const firstId = segmentFirstId(name, this.#kind);
      if (firstId !== undefined) segments.push({ firstId, bytes: (await stat(join(this.#dir, name))).size });
    }
    segments.sort((a, b) => a.firstId - b.firstId);
    const newest = segments.at(-1);
    let lastId = 0;
    if (newest !== undefined) {
      const content = await readFile(this.#path(newest));
      const bytes = wholeBytes(content);
      if (bytes < content.length) await truncate(this.#path(newest), bytes);
      segments[segments.length - 1] = { firstId: newest.firstId, bytes };
      // Of one without a whole line at least the name is known.
      lastId = parseLines(content.toString("utf8")).at(-1)?.id ?? newest.firstId - 1;
    }
    this.#known = { segments, lastId };
    return this.#known;
  }
}

async function namesIn(dir: string): Promise<string[]> {
  try {
    return await readdir(dir);
  } catch (error) {
    if (isMissing(error)) return [];
    throw error;
  }
}
