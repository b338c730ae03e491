import { createHash } from "node:crypto";
import { createReadStream, renameSync, rmSync, statSync } from "node:fs";
import { open } from "node:fs/promises";
import { setGlobalProxyFromEnv } from "node:http";
import { dirname } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { makeDir } from "./cache.js";

export interface Download {
  readonly url: string;
  /** Of the whole file, in hex. */
  readonly sha256: string;
  /** Where it is to lie. What has come so far lies beside it, and the next call goes on from there. */
  readonly path: string;
  /** Told with each piece how far it is; `totalBytes` is undefined where the server does not say. */
  readonly onProgress?: (doneBytes: number, totalBytes: number | undefined) => void;
  readonly patience?: Patience;
}

export interface Patience {
  /** In a row that bring nothing new. */
  readonly attempts: number;
  /** Before the second attempt; doubled with each. */
  readonly pauseMs: number;
  /** After which a connection is taken for dead. */
  readonly silenceMs: number;
}

const PATIENCE: Patience = { attempts: 5, pauseMs: 1000, silenceMs: 30_000 };
const LONGEST_PAUSE_MS = 60_000;

/** Codes of errors that another attempt may mend. */
const PASSING_CODES = [
  "EAI_AGAIN",
  "ECONNREFUSED",
  "ECONNRESET",
  "EHOSTUNREACH",
  "ENETUNREACH",
  "EPIPE",
  "ETIMEDOUT",
  "UND_ERR_BODY_TIMEOUT",
  "UND_ERR_CONNECT_TIMEOUT",
  "UND_ERR_HEADERS_TIMEOUT",
  "UND_ERR_SOCKET",
];

class Passing extends Error {
  readonly pauseMs: number | undefined;
  constructor(message: string, pauseMs?: number) {
    super(message);
    this.pauseMs = pauseMs;
  }
}

/**
 * Fetches a file whose digest is known: afterwards it is there whole and right, or not at all. Follows redirects, goes on where a
 * connection broke off, has patience with passing troubles, and uses the proxy that HTTPS_PROXY names.
 * @throws Error in words for people: not reachable, no such file, another file
 */
export async function download(wanted: Download): Promise<void> {
  const part = `${wanted.path}.part`;
  makeDir(dirname(wanted.path));
  const restoreProxy = setGlobalProxyFromEnv?.(); // the first releases of Node 24 have none
  try {
    let wasResumed = await fetchWhole(wanted, part);
    let found = await sha256Of(part);
    if (found !== wanted.sha256 && wasResumed) {
      // What lay here may have been the beginning of another file.
      rmSync(part);
      wasResumed = await fetchWhole(wanted, part);
      found = await sha256Of(part);
    }
    if (found !== wanted.sha256) {
      rmSync(part);
      throw new Error(
        `what came is another file, or was changed on the way: its sha256 is ${found}, not ${wanted.sha256}`,
      );
    }
    renameSync(part, wanted.path);
  } finally {
    restoreProxy?.();
  }
}

/** Of a file's bytes, in hex. */
export async function sha256Of(path: string): Promise<string> {
  const hash = createHash("sha256");
  for await (const piece of createReadStream(path)) hash.update(piece as Buffer);
  return hash.digest("hex");
}

/** Returns true when some of the file came earlier than the rest. */
async function fetchWhole(wanted: Download, part: string): Promise<boolean> {
  const { attempts, pauseMs } = wanted.patience ?? PATIENCE;
  let wasResumed = false;
  for (let failures = 0; ; ) {
    const startBytes = sizeOf(part);
    wasResumed ||= startBytes > 0;
    try {
      await fetchRest(wanted, part, startBytes);
      return wasResumed;
    } catch (error) {
      const passing = passingOf(error);
      if (passing === undefined) throw new Error(innermost(error).message, { cause: error });
      failures = sizeOf(part) > startBytes ? 1 : failures + 1;
      if (failures >= attempts) throw new Error(`${passing.message}, ${failures} times in a row`, { cause: error });
      await sleep(Math.min(passing.pauseMs ?? pauseMs * 2 ** (failures - 1), LONGEST_PAUSE_MS));
    }
  }
}

async function fetchRest(wanted: Download, part: string, startBytes: number): Promise<void> {
  const { silenceMs } = wanted.patience ?? PATIENCE;
  const abort = new AbortController();
  const watchdog = setTimeout(() => abort.abort(new Passing(`nothing came for ${silenceMs / 1000} s`)), silenceMs);
  try {
    const response = await fetch(wanted.url, {
      // Unchanged: some servers call an archive that is compressed by itself content in gzip.
      headers: { "accept-encoding": "identity", ...(startBytes > 0 ? { range: `bytes=${startBytes}-` } : {}) },
      signal: abort.signal,
    });
    const plan = judge(response, startBytes);
    if (plan === "complete") return;
    if (plan === "start over") {
      rmSync(part);
      throw new Passing("the server cannot go on where it broke off");
    }
    const { totalBytes } = plan;
    let doneBytes = plan.startBytes;
    // Each piece is on the disk before the next is read, so that little is lost when the connection breaks off.
    await using file = await open(part, plan.startBytes > 0 ? "a" : "w");
    for await (const piece of response.body ?? []) {
      watchdog.refresh();
      await file.appendFile(piece);
      doneBytes += piece.length;
      wanted.onProgress?.(doneBytes, totalBytes);
    }
  } finally {
    clearTimeout(watchdog);
  }
}

interface Coming {
  /** Where in the file the body begins. */
  readonly startBytes: number;
  readonly totalBytes: number | undefined;
}

/** What an answer means for a file of which `startBytes` are here. Throws when it has none of the file. */
function judge(response: Response, startBytes: number): Coming | "complete" | "start over" {
  const range = /^bytes (?:(\d+)-\d+|\*)\/(\d+)$/.exec(response.headers.get("content-range") ?? "");
  const totalBytes = range?.[2] === undefined ? undefined : Number(range[2]);
  const { status } = response;
  if (status === 206) return Number(range?.[1]) === startBytes ? { startBytes, totalBytes } : "start over";
  if (status === 416) return totalBytes === startBytes ? "complete" : "start over";
  if (status === 200) {
    const length = response.headers.get("content-length");
    return { startBytes: 0, totalBytes: length === null ? undefined : Number(length) };
  }
  const said = `${new URL(response.url).host} answers ${status} ${response.statusText}`.trimEnd();
  if (status !== 408 && status !== 429 && status < 500) throw new Error(said);
  const retryAfter = Number(response.headers.get("retry-after") ?? Number.NaN);
  throw new Passing(said, Number.isFinite(retryAfter) ? retryAfter * 1000 : undefined);
}

/** fetch says no more than that it failed; what was the matter is its cause. */
function innermost(error: unknown): Error {
  if (!(error instanceof Error)) return new Error(String(error));
  return error.cause instanceof Error ? innermost(error.cause) : error;
}

/** The passing trouble that an error stands for; undefined when another attempt cannot help. */
function passingOf(error: unknown): Passing | undefined {
  for (let cause = error; cause instanceof Error; cause = cause.cause) {
    if (cause instanceof Passing) return cause;
    const { code } = cause as NodeJS.ErrnoException;
    if (code !== undefined && PASSING_CODES.includes(code)) return new Passing(cause.message);
  }
  return undefined;
}

function sizeOf(path: string): number {
  return statSync(path, { throwIfNoEntry: false })?.size ?? 0;
}
