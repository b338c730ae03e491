/** First bytes of LZ4's legacy format, in which kernels are packed. */
export const LZ4_LEGACY_MAGIC = Buffer.from([0x02, 0x21, 0x4c, 0x18]);

const MIN_MATCH_BYTES = 4;
/** A length of this in its four bits goes on in the bytes that follow; one of 255 there goes on, too. */
const LONG = 15;
const LONGER = 255;

/** Unpacks LZ4's legacy format: the magic, then blocks of their own. Throws when `packed` does not give just `size` bytes. */
export function unpackLz4Legacy(packed: Buffer, size: number): Buffer {
  const out = Buffer.alloc(size);
  let at = LZ4_LEGACY_MAGIC.length;
  let written = 0;
  while (at < packed.length) {
    if (at + 4 > packed.length) throw damaged(at);
    const end = at + 4 + packed.readUInt32LE(at);
    if (end > packed.length) throw damaged(at);
    written = unpackBlock(packed.subarray(0, end), at + 4, out, written);
    at = end;
  }
  if (written !== size) throw new Error(`the LZ4 data gives ${written} bytes, not ${size}`);
  return out;
}

/** Unpacks the block from `at` to the end of `packed` to `start` of `out`; returns where in `out` it ends. */
function unpackBlock(packed: Buffer, at: number, out: Buffer, start: number): number {
  let written = start;
  const length = (first: number): number => {
    let sum = first;
    for (let byte = LONGER; first === LONG && byte === LONGER; sum += byte) byte = packed[at++] ?? 0;
    return sum;
  };
  while (at < packed.length) {
    const token = packed[at++] ?? 0;
    const literals = length(token >> 4);
    if (at + literals > packed.length || written + literals > out.length) throw damaged(at);
    packed.copy(out, written, at, at + literals);
    at += literals;
    written += literals;
    if (at === packed.length) break; // the last sequence has no match

    if (at + 2 > packed.length) throw damaged(at);
    const from = written - packed.readUInt16LE(at);
    at += 2;
    const match = length(token & 15) + MIN_MATCH_BYTES;
    if (from < start || from === written || written + match > out.length) throw damaged(at);
    // A match may reach into itself, so what is copied at once is what there is already.
    for (let left = match, step = written - from; left > 0; left -= step) {
      step = Math.min(step, left);
      out.copyWithin(written, from, from + step);
      written += step;
    }
  }
  return written;
}

function damaged(at: number): Error {
  return new Error(`the LZ4 data is damaged at byte ${at}`);
}
