/**
 * The cache folder: what setting up makes, keyed by content, shared by all checkouts of one person. Plain JavaScript for Node 20,
 * because it is needed before the right Node is there.
 */
import { spawn } from "node:child_process";
import {
  chownSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readlinkSync,
  renameSync,
  rmSync,
  statSync,
  utimesSync,
} from "node:fs";
import { homedir } from "node:os";
import { dirname, join } from "node:path";

/** `AENV_CACHE_DIR`, or ~/.cache/aenv. */
export function cacheDir() {
  return process.env.AENV_CACHE_DIR || join(homedir(), ".cache", "aenv");
}

/**
 * Whose files the cache holds: with sudo, the person who typed it (their home is kept), so that what root makes stays usable
 * without sudo. undefined: whoever we are.
 * @returns {{ uid: number, gid: number } | undefined}
 */
export function cacheOwner() {
  const uid = Number(process.env.SUDO_UID);
  const gid = Number(process.env.SUDO_GID);
  if (process.getuid?.() !== 0 || !Number.isInteger(uid) || !Number.isInteger(gid) || uid === 0) return undefined;
  return statSync(homedir()).uid === uid ? { uid, gid } : undefined;
}

/** Makes a folder and what is missing above it, owned by the cache's owner. @param {string} path */
export function makeDir(path) {
  if (existsSync(path)) return;
  makeDir(dirname(path));
  mkdirSync(path, { recursive: true });
  const owner = cacheOwner();
  if (owner) chownSync(path, owner.uid, owner.gid);
}

/**
 * The entry `path` of the cache; made first by `make(temp)` when it is not there. What `make` left at `temp` is renamed into
 * place, so an entry is there whole or not at all.
 * @param {string} path
 * @param {(temp: string) => Promise<void> | void} make
 * @returns {Promise<string>} path
 */
export async function cached(path, make) {
  if (!existsSync(path)) {
    makeDir(dirname(path));
    const temp = `${path}.${process.pid}.tmp`;
    try {
      await make(temp);
      renameSync(temp, path);
    } finally {
      rmSync(temp, { recursive: true, force: true });
    }
  }
  const now = new Date();
  utimesSync(path, now, now);
  return path;
}

/**
 * Removes the least recently used entries of a folder of the cache, but for the `keep` newest and those a running process
 * was started from.
 * @param {string} dir
 * @param {number} keep
 */
export function prune(dir, keep) {
  if (!existsSync(dir)) return;
  const running = runningPrograms();
  const entries = readdirSync(dir)
    .filter((name) => !name.endsWith(".tmp"))
    .map((name) => ({ path: join(dir, name), usedMs: statSync(join(dir, name)).mtimeMs }))
    .sort((a, b) => b.usedMs - a.usedMs);
  for (const { path } of entries.slice(keep)) {
    if (!running.some((program) => program.startsWith(`${path}/`))) rmSync(path, { recursive: true, force: true });
  }
}

function runningPrograms() {
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name))
    .flatMap((pid) => {
      try {
        return [readlinkSync(`/proc/${pid}/exe`)];
      } catch {
        return []; // a kernel thread, another person's process, or one that just ended
      }
    });
}

/**
 * Runs `work` while no other process holds the lock `name`. The lock is the kernel's (flock), held by a child that lives as long
 * as we do: nothing stale is left by a crash.
 * @template T
 * @param {string} path the lock's file
 * @param {() => Promise<T>} work
 * @returns {Promise<T>}
 */
export async function withLock(path, work) {
  makeDir(dirname(path));
  // `cat` answers the first line only once flock has the lock, and ends when our end of its pipe closes.
  const holder = spawn("flock", [path, "cat"], { stdio: ["pipe", "pipe", "inherit"] });
  const notice = setTimeout(() => {
    process.stdout.write(`  waiting for another run of these scripts to finish (lock ${path})\n`);
  }, 1000);
  try {
    await new Promise((resolve, reject) => {
      holder.once("error", (error) =>
        reject(new Error(`cannot take the lock ${path}: install util-linux (flock)`, { cause: error })),
      );
      holder.once("exit", (code) => reject(new Error(`cannot take the lock ${path}: flock exited with ${code}`)));
      holder.stdout.once("data", resolve);
      holder.stdin.write("held\n");
    });
  } finally {
    clearTimeout(notice);
  }
  try {
    return await work();
  } finally {
    const gone = new Promise((resolve) => holder.once("exit", resolve));
    holder.stdin.end();
    await gone;
  }
}
