/** What Connect puts before each message of a stream: flags (1 byte) and the message's length (4 bytes, the highest first). */
export const ENVELOPE_BYTES = 5;

/** The message is compressed. */
export const FLAG_COMPRESSED = 1;

/** The last of a stream: a JSON object with `error` where it has failed. */
export const FLAG_END = 2;

export function envelope(message: Uint8Array, flags = 0): Buffer {
  const head = Buffer.alloc(ENVELOPE_BYTES);
  head.writeUInt8(flags);
  head.writeUInt32BE(message.length, 1);
  return Buffer.concat([head, message]);
}
