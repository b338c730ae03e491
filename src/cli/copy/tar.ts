/**
 * The part of tar that `aenv` and the agent speak with each other: ustar headers and pax records of their own (POSIX.1-2001).
 * Names are strings of bytes ("latin1"), because a file's name is bytes and need not be UTF-8.
 */
export interface TarEntry {
  readonly name: string;
  readonly kind: "file" | "folder" | "link" | "special";
  /** Permission bits. */
  readonly mode: number;
  readonly modifiedS: number;
  /** Of a file's content, in bytes. */
  readonly size: number;
  /** Where a link leads; bytes too. */
  readonly target: string;
}

export interface ReadEntry extends TarEntry {
  /** To be read before the next entry is asked for, or not at all. */
  readonly content: AsyncIterable<Buffer>;
}

const BLOCK = 512;
const MAX_PAX_BYTES = 1 << 20;
/** Octal digits in a header's size. */
const MAX_PLAIN_SIZE = 8 ** 11 - 1;
const NAME_BYTES = 100;
const TYPES: Readonly<Record<string, TarEntry["kind"]>> = {
  "0": "file",
  "\0": "file",
  "5": "folder",
  "2": "link",
  "3": "special",
  "4": "special",
  "6": "special",
};
const TYPE_OF = { file: "0", folder: "5", link: "2", special: "6" } as const;

/** Two empty blocks end an archive. */
export const TAR_END = Buffer.alloc(2 * BLOCK);

/** What stands before an entry's content. */
export function tarHeader(entry: TarEntry): Buffer {
  const records: string[] = [];
  if (entry.name.length > NAME_BYTES) records.push(paxRecord("path", entry.name));
  if (entry.target.length > NAME_BYTES) records.push(paxRecord("linkpath", entry.target));
  if (entry.size > MAX_PLAIN_SIZE) records.push(paxRecord("size", String(entry.size)));
  const own = block(entry, TYPE_OF[entry.kind], entry.size > MAX_PLAIN_SIZE ? 0 : entry.size);
  if (records.length === 0) return own;
  const body = Buffer.from(records.join(""), "latin1");
  const pax = block({ ...entry, name: "pax", target: "", mode: 0o644 }, "x", body.length);
  return Buffer.concat([pax, body, tarPadding(body.length), own]);
}

/** What stands behind `size` bytes of content. */
export function tarPadding(size: number): Buffer {
  return TAR_END.subarray(0, (BLOCK - (size % BLOCK)) % BLOCK);
}

function block(entry: TarEntry, type: string, size: number): Buffer {
  const made = Buffer.alloc(BLOCK);
  const octal = (value: number, at: number, digits: number): void => {
    made.write(Math.max(0, Math.floor(value)).toString(8).padStart(digits, "0").slice(-digits), at, "latin1");
  };
  made.write(entry.name.slice(0, NAME_BYTES), 0, "latin1");
  octal(entry.mode, 100, 7);
  octal(0, 108, 7);
  octal(0, 116, 7);
  octal(size, 124, 11);
  octal(entry.modifiedS, 136, 11);
  made.write(`        ${type}`, 148, "latin1");
  made.write(entry.target.slice(0, NAME_BYTES), 157, "latin1");
  made.write("ustar\x0000", 257, "latin1");
  octal(sum(made), 148, 6);
  made.write("\0 ", 154, "latin1");
  return made;
}

/** The length stands in the record that it is the length of. */
function paxRecord(key: string, value: string): string {
  const rest = ` ${key}=${value}\n`;
  let length = rest.length;
  while (String(length).length + rest.length !== length) length = String(length).length + rest.length;
  return `${length}${rest}`;
}

function sum(header: Buffer): number {
  let total = 0;
  for (const byte of header) total += byte;
  return total;
}

/** The entries of an archive. Throws Error for one that is damaged, or that ends before its end. */
export async function* readTar(from: AsyncIterable<Buffer>): AsyncGenerator<ReadEntry, void> {
  const bytes = new Bytes(from);
  let pax = new Map<string, string>();
  for (;;) {
    const header = await bytes.take(BLOCK);
    if (header.every((byte) => byte === 0)) return await bytes.drain();
    const checked = Buffer.from(header);
    checked.fill(" ", 148, 156);
    if (octalAt(header, 148, 8) !== sum(checked)) throw new Error("what the sandbox sends is no archive");
    const type = String.fromCharCode(header[156] ?? 0);
    const size = pax.has("size") ? Number(pax.get("size")) : octalAt(header, 124, 12);
    if (!Number.isSafeInteger(size) || size < 0) throw new Error("an entry of the archive has no size");
    if (type === "x" || type === "g") {
      if (size > MAX_PAX_BYTES) throw new Error(`an entry's attributes have ${size} bytes`);
      const records = await bytes.take(size);
      await bytes.skip(tarPadding(size).length);
      if (type === "x") pax = parsePax(records.toString("latin1"));
      continue;
    }
    const prefix = textAt(header, 345, 155);
    const short = textAt(header, 0, NAME_BYTES);
    const content = new Content(bytes, size);
    yield {
      name: pax.get("path") ?? (prefix === "" ? short : `${prefix}/${short}`),
      kind: TYPES[type] ?? "special",
      mode: octalAt(header, 100, 8) & 0o7777,
      modifiedS: octalAt(header, 136, 12),
      size,
      target: pax.get("linkpath") ?? textAt(header, 157, NAME_BYTES),
      content,
    };
    await content.skipRest();
    await bytes.skip(tarPadding(size).length);
    pax = new Map();
  }
}

function parsePax(text: string): Map<string, string> {
  const found = new Map<string, string>();
  for (let at = 0; at < text.length; ) {
    const length = Number(/^\d{1,9}(?= )/.exec(text.slice(at, at + 10))?.[0]);
    const record = text.slice(at, at + length);
    const equals = record.indexOf("=");
    if (!(length > 0) || equals < 0 || !record.endsWith("\n")) throw new Error("an entry's attributes are damaged");
    found.set(record.slice(record.indexOf(" ") + 1, equals), record.slice(equals + 1, -1));
    at += length;
  }
  return found;
}

function textAt(header: Buffer, at: number, length: number): string {
  const text = header.toString("latin1", at, at + length);
  const end = text.indexOf("\0");
  return end < 0 ? text : text.slice(0, end);
}

/** Octal digits, or, where the first bit says so, a big-endian number. NaN where there is neither. */
function octalAt(header: Buffer, at: number, length: number): number {
  if (((header[at] ?? 0) & 0x80) === 0) {
    const digits = textAt(header, at, length).trim();
    return digits === "" ? 0 : /^[0-7]+$/.test(digits) ? Number.parseInt(digits, 8) : Number.NaN;
  }
  let value = (header[at] ?? 0) & 0x7f;
  for (let place = at + 1; place < at + length; place += 1) value = value * 256 + (header[place] ?? 0);
  return value;
}

/** A stream of chunks, taken in pieces of any size. */
class Bytes {
  readonly #chunks: AsyncIterator<Buffer>;
  #rest: Buffer = Buffer.alloc(0);

  constructor(from: AsyncIterable<Buffer>) {
    this.#chunks = from[Symbol.asyncIterator]();
  }

  /** Up to `most` bytes, one at least. */
  async some(most: number): Promise<Buffer> {
    while (this.#rest.length === 0) {
      const next = await this.#chunks.next();
      if (next.done) throw new Error("the sandbox stopped sending in the middle");
      this.#rest = next.value;
    }
    const taken = this.#rest.subarray(0, most);
    this.#rest = this.#rest.subarray(taken.length);
    return taken;
  }

  async take(count: number): Promise<Buffer> {
    const parts: Buffer[] = [];
    for (let left = count; left > 0; ) {
      const part = await this.some(left);
      parts.push(part);
      left -= part.length;
    }
    return parts.length === 1 && parts[0] !== undefined ? parts[0] : Buffer.concat(parts);
  }

  async skip(count: number): Promise<void> {
    for (let left = count; left > 0; ) left -= (await this.some(left)).length;
  }

  /** Reads to the end, so that the connection can be used again. */
  async drain(): Promise<void> {
    while (!(await this.#chunks.next()).done);
  }
}

class Content implements AsyncIterable<Buffer> {
  readonly #bytes: Bytes;
  #left: number;

  constructor(bytes: Bytes, size: number) {
    this.#bytes = bytes;
    this.#left = size;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Buffer, void> {
    while (this.#left > 0) {
      const piece = await this.#bytes.some(this.#left);
      this.#left -= piece.length;
      yield piece;
    }
  }

  async skipRest(): Promise<void> {
    await this.#bytes.skip(this.#left);
    this.#left = 0;
  }
}
