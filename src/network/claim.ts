import { mkdir, readdir, readFile, realpath, stat, unlink } from "node:fs/promises";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { setTimeout as delay } from "node:timers/promises";
import { AenvError } from "#domain";
import { isMissing, writeFileAtomic } from "#lib/files";
import { MAX_SERVERS, type ServerNetwork, serverNetwork } from "./addresses.ts";

/**
 * Which of the host's servers this one is. A claim is a file named by the index that says whose it is: `{"dataDir": …}`.
 * It outlives the server's processes, because sandboxes do; it ends with `release`, with the data folder (whoever comes
 * next takes it over), or with the host's next boot, as /run does.
 */
export const CLAIMS_DIR = "/run/aenv/claims";

export interface ClaimOptions {
  /** Must exist. */
  readonly dataDir: string;
  readonly claimsDir?: string;
  /** Removes everything that may be left on the host of a server whose data folder is gone, before its index is used
   *  again. When it throws, the index is left alone. */
  readonly onStale: (network: ServerNetwork) => Promise<void>;
}

export interface ServerClaim {
  readonly index: number;
  readonly prefix: string;
  readonly network: ServerNetwork;
  /** Gives the index up. Precondition: nothing that is named by it is left. Repeatable. */
  release(): Promise<void>;
}

const LOCK_WAIT_MS = 30_000;
const LOCK_RETRY_MS = 20;

/** Finds the index this data folder has, or takes the lowest that is free or stale.
 *  Errors: exhausted (all taken), unavailable (another server has been claiming for too long). */
export async function claimServer(options: ClaimOptions): Promise<ServerClaim> {
  const claimsDir = options.claimsDir ?? CLAIMS_DIR;
  const dataDir = await realpath(options.dataDir);
  await mkdir(claimsDir, { recursive: true, mode: 0o755 });
  const index = await locked(claimsDir, async () => {
    const claims = await readClaims(claimsDir);
    const mine = [...claims].find(([, owner]) => owner === dataDir)?.[0];
    if (mine !== undefined) return mine;
    for (let candidate = 0; candidate < MAX_SERVERS; candidate += 1) {
      if (claims.has(candidate)) {
        const owner = claims.get(candidate);
        if (owner === undefined || (await isFolder(owner))) continue;
        await options.onStale(serverNetwork(candidate));
      }
      await writeFileAtomic(join(claimsDir, String(candidate)), `${JSON.stringify({ dataDir })}\n`);
      return candidate;
    }
    throw new AenvError("exhausted", `all ${MAX_SERVERS} server indexes of this host are claimed in ${claimsDir}`, {
      hint: `stop a server that is no longer needed and remove its data folder: each file ${claimsDir}/N names one`,
    });
  });
  const release = (): Promise<void> => locked(claimsDir, () => giveUp(claimsDir, index, dataDir));
  const network = serverNetwork(index);
  return { index, prefix: network.prefix, network, release };
}

async function giveUp(claimsDir: string, index: number, dataDir: string): Promise<void> {
  if ((await readClaims(claimsDir)).get(index) === dataDir) await unlink(join(claimsDir, String(index)));
}

/** Index → data folder; undefined for a claim that cannot be read, which is therefore never taken over. */
async function readClaims(claimsDir: string): Promise<Map<number, string | undefined>> {
  const claims = new Map<number, string | undefined>();
  for (const name of await readdir(claimsDir)) {
    if (!/^\d{1,2}$/.test(name)) continue;
    claims.set(Number(name), parseClaim(await readFile(join(claimsDir, name), "utf8")));
  }
  return claims;
}

function parseClaim(text: string): string | undefined {
  try {
    const claim: unknown = JSON.parse(text);
    if (typeof claim === "object" && claim !== null && "dataDir" in claim && typeof claim.dataDir === "string") {
      return claim.dataDir;
    }
    return undefined;
  } catch {
    return undefined;
  }
}

async function isFolder(path: string): Promise<boolean> {
  try {
    return (await stat(path)).isDirectory();
  } catch (error) {
    if (isMissing(error)) return false;
    throw error;
  }
}

/**
 * One claimant at a time on this host. The lock is an empty SQLite file, which is a file lock of the kernel: it cannot be
 * left behind by a process that died, and only who may write the folder can hold it.
 */
async function locked<T>(claimsDir: string, work: () => Promise<T>): Promise<T> {
  const lock = new DatabaseSync(join(claimsDir, ".lock"), { timeout: 0 });
  try {
    const giveUpAtMs = Date.now() + LOCK_WAIT_MS;
    while (!tryLock(lock)) {
      if (Date.now() > giveUpAtMs) {
        throw new AenvError("unavailable", `another server has been claiming an index for ${LOCK_WAIT_MS / 1000} s`, {
          hint: `see which process has ${join(claimsDir, ".lock")} open`,
        });
      }
      await delay(LOCK_RETRY_MS);
    }
    return await work();
  } finally {
    lock.close();
  }
}

function tryLock(lock: DatabaseSync): boolean {
  const SQLITE_BUSY = 5;
  try {
    lock.exec("BEGIN EXCLUSIVE");
    return true;
  } catch (error) {
    if (error instanceof Error && "errcode" in error && error.errcode === SQLITE_BUSY) return false;
    throw error;
  }
}
