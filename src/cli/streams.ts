import type { Readable } from "node:stream";

const CHUNK_BYTES = 256 * 1024;

/** What there is, in pieces of bounded size, as it comes; ends at end of file, throws when the input cannot be read. */
export async function* chunksOf(input: Readable, signal: AbortSignal): AsyncGenerator<Buffer, void> {
  // A failure between two waits is found in `errored`; without a listener it would end the process.
  input.on("error", () => {});
  for (;;) {
    if (input.errored) throw input.errored;
    const chunk = input.read() as Buffer | null;
    if (chunk !== null) {
      for (let at = 0; at < chunk.length; at += CHUNK_BYTES) yield chunk.subarray(at, at + CHUNK_BYTES);
    } else if (input.readableEnded || input.destroyed) {
      return;
    } else {
      await news(input, signal);
    }
  }
}

const NEWS = ["readable", "end", "close", "error"] as const;

/** Settles when there is something to read, or nothing any more. Throws the signal's reason. */
function news(input: Readable, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal.aborted) return reject(signal.reason);
    const settle = (): void => {
      for (const name of NEWS) input.off(name, onNews);
      signal.removeEventListener("abort", onAbort);
    };
    const onNews = (): void => {
      settle();
      resolve();
    };
    const onAbort = (): void => {
      settle();
      reject(signal.reason);
    };
    for (const name of NEWS) input.on(name, onNews);
    signal.addEventListener("abort", onAbort);
  });
}
