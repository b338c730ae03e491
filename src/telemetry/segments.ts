/**
 * How a ring lies on disk: a few files of lines, each line a JSON array that begins with its id. Ids only grow, and a file is
 * named by its first. A full file is followed by a new one and the oldest goes, so a ring is bounded and nothing in it is
 * written twice.
 */
export interface Segment {
  readonly firstId: number;
  readonly bytes: number;
}

const SEGMENT_BYTES = 512 * 1024;
const SEGMENTS_MAX = 4;

const NAME = /^([a-z]+)-(\d{16})$/;

export function segmentName(kind: string, firstId: number): string {
  return `${kind}-${String(firstId).padStart(16, "0")}`;
}

/** undefined: another kind, or no segment. */
export function segmentFirstId(name: string, kind: string): number | undefined {
  const match = NAME.exec(name);
  return match?.[1] === kind ? Number(match[2]) : undefined;
}

/** Whether lines go into a new file. */
export function isFull(segment: Segment | undefined): boolean {
  return segment === undefined || segment.bytes >= SEGMENT_BYTES;
}

/** Which files go, oldest first. Segments in order. */
export function surplus(segments: readonly Segment[]): readonly Segment[] {
  return segments.slice(0, Math.max(0, segments.length - SEGMENTS_MAX));
}

/** Which files may hold ids of a range, both ends included. Segments in order. */
export function overlapping(segments: readonly Segment[], fromId: number, toId: number): readonly Segment[] {
  return segments.filter(({ firstId }, at) => {
    const next = segments[at + 1]?.firstId ?? Number.POSITIVE_INFINITY;
    return firstId <= toId && next > fromId;
  });
}

export interface Line {
  readonly id: number;
  readonly text: string;
}

/** The complete lines of a file's text. What a crash has left of a line is left out. */
export function parseLines(text: string): Line[] {
  const lines: Line[] = [];
  let from = 0;
  for (let end = text.indexOf("\n"); end >= 0; end = text.indexOf("\n", from)) {
    const line = text.slice(from, end);
    from = end + 1;
    const id = Number(line.slice(1, line.indexOf(",")));
    if (line.startsWith("[") && Number.isSafeInteger(id) && id > 0) lines.push({ id, text: line });
  }
  return lines;
}

/** How many bytes of a file are complete lines. */
export function wholeBytes(content: Uint8Array): number {
  return content.lastIndexOf(0x0a) + 1;
}
