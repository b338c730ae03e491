import { constants, open as openCallback } from "node:fs";
import { type FileHandle, open, stat } from "node:fs/promises";
import { Socket } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";
import { cannotWrite, writeAll } from "../io.ts";
import { chunksOf } from "../streams.ts";
import { shown, toBytes } from "./names.ts";
import { cannotRead } from "./pack.ts";

const PIECE_BYTES = 1 << 20;
/** A named pipe does not say when somebody comes to read. */
const READER_LOOK_MS = 50;
/** Whose descriptor is handed on, and closed by who gets it. */
const openDescriptor = promisify(openCallback);

/** What a pipe or device gives until its end. Throws CliError, and the signal's reason while nobody writes. */
export async function* readSpecial(path: string, signal: AbortSignal): AsyncGenerator<Buffer, void> {
  try {
    if (!(await isNamedPipe(path))) {
      yield* (await open(toBytes(path))).createReadStream({
        highWaterMark: PIECE_BYTES,
        signal,
      }) as AsyncIterable<Buffer>;
      return;
    }
    // Opened as usual it would wait for its other end where nothing could end that.
    const fd = await openDescriptor(toBytes(path), constants.O_RDONLY | constants.O_NONBLOCK);
    const socket = quiet(new Socket({ fd, readable: true, writable: false }));
    try {
      yield* chunksOf(socket, signal);
    } finally {
      socket.destroy();
    }
  } catch (error) {
    signal.throwIfAborted();
    throw cannotRead(path, error);
  }
}

/** Into a pipe or device, which stays what it is. Throws CliError, BrokenPipeError, and the signal's reason while nobody reads. */
export async function writeSpecial(path: string, content: AsyncIterable<Buffer>, signal: AbortSignal): Promise<void> {
  const opened = await opening(path, signal);
  if (opened instanceof Socket) {
    try {
      for await (const piece of content) await writeAll(opened, piece, signal);
      await new Promise<void>((resolve) => opened.end(resolve));
    } finally {
      opened.destroy();
    }
    return;
  }
  try {
    for await (const piece of content) {
      await opened.writeFile(piece).catch((error) => {
        throw cannotWrite(shown(path), error);
      });
    }
  } finally {
    await opened.close();
  }
}

async function opening(path: string, signal: AbortSignal): Promise<FileHandle | Socket> {
  for (;;) {
    signal.throwIfAborted();
    let isPipe = false;
    try {
      isPipe = await isNamedPipe(path);
      if (!isPipe) return await open(toBytes(path), constants.O_WRONLY);
      const fd = await openDescriptor(toBytes(path), constants.O_WRONLY | constants.O_NONBLOCK);
      return quiet(new Socket({ fd, readable: false, writable: true }));
    } catch (error) {
      if (!isPipe || (error as NodeJS.ErrnoException).code !== "ENXIO") throw cannotWrite(shown(path), error as Error);
      await sleep(READER_LOOK_MS, undefined, { signal }).catch(() => {});
    }
  }
}

/** Whoever reads or writes meets a failure there; without a listener the same event would end the process. */
function quiet(socket: Socket): Socket {
  return socket.on("error", () => {});
}

async function isNamedPipe(path: string): Promise<boolean> {
  return (await stat(toBytes(path))).isFIFO();
}
