import { randomInt } from "node:crypto";
import { mkdirSync, readdirSync, readFileSync, statSync } from "node:fs";
import { chmod, chown, link, mkdir, readdir, rm, rmdir, stat, symlink, unlink } from "node:fs/promises";
import { basename, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { AenvError } from "#domain";
import { hasCode, ignoreMissing, isMissing, readEnd } from "#lib/files";
import { startTicks } from "#lib/proc";
import type { Cgroups } from "../cgroup/index.ts";
import type { MachineNetwork } from "../driver.ts";
import { endProcesses } from "../end-processes.ts";
import { NAME, newName } from "./names.ts";
import type { FirecrackerOptions } from "./parts.ts";
import { accepts, isOf, processesOf } from "./processes.ts";
import { Wiring } from "./wiring.ts";

const UIDS = 65_536;
const START_TIMEOUT_MS = 30_000;
const LOG_TAIL_BYTES = 4 * 1024;
const SOCKET = "api.sock";
/** Files that a snapshot is written into, as long as it is. */
const BEING_WRITTEN = ".new";

/** A jailed Firecracker: a process as a user of its own, in a root folder, network and pid namespace of its own. */
export interface Jail {
  readonly id: string;
  readonly pid: number;
  readonly uid: number;
  /** The folder that is `/` to the process. */
  readonly root: string;
  readonly socketPath: string;
}

/** A file that a process has been lent. */
export interface Lent {
  /** Its name as the process sees it. */
  readonly inside: string;
  readonly path: string;
}

/**
 * All jails of a server, each a folder below `<dir>/jails`. A process is known by its jail's id on its command line, so a
 * jail is found again by whoever comes after us. Jails are started ahead where a slot waits for its machine, each in a cgroup of
 * its name, which its machine's limits are written to: to be moved into another would take longer than all the rest.
 */
export class Jails {
  readonly #options: FirecrackerOptions;
  readonly #cgroups: Cgroups;
  /** The jailer's own scheme: `<base>/<name of the program>/<id>/root`. */
  readonly #dir: string;
  readonly #logsDir: string;
  /** Where sockets are reached by a path short enough for one. */
  readonly #shortDir: string;
  readonly #uids = new Set<number>();
  /** By network namespace: started, waiting for a machine. */
  readonly #waiting = new Map<string, Promise<Jail>>();
  readonly #wiring: Wiring;
  readonly #program: string;

  private constructor(options: FirecrackerOptions, cgroups: Cgroups, program: string) {
    this.#options = options;
    this.#cgroups = cgroups;
    this.#program = program;
    this.#wiring = new Wiring(options.runner, options.firstUid);
    this.#dir = join(options.dir, "jails", basename(program));
    this.#logsDir = join(options.dir, "logs");
    this.#shortDir = join(options.stateDir, "j");
  }

  /** `program`: a copy of Firecracker, whose name is always the same. */
  static async open(options: FirecrackerOptions, cgroups: Cgroups, program: string): Promise<Jails> {
    const jails = new Jails(options, cgroups, program);
    await mkdir(jails.#dir, { recursive: true, mode: 0o700 });
    await mkdir(jails.#logsDir, { recursive: true, mode: 0o700 });
    await mkdir(options.stateDir, { recursive: true, mode: 0o700 });
    await unlink(jails.#shortDir).catch(ignoreMissing);
    await symlink(jails.#dir, jails.#shortDir);
    for (const id of await jails.list()) jails.#uids.add(statSync(join(jails.#dir, id)).uid);
    return jails;
  }

  /** Starts a jail for whichever machine this network gets. Repeatable. */
  async prepare(network: MachineNetwork): Promise<void> {
    const known = this.#waiting.get(network.netnsPath);
    if (known !== undefined) {
      await known;
      return;
    }
    const started = this.#start(network);
    this.#waiting.set(network.netnsPath, started);
    try {
      await started;
    } catch (error) {
      this.#waiting.delete(network.netnsPath);
      throw error;
    }
  }

  /** Undoes `prepare` where the jail was not taken. */
  async unprepare(network: MachineNetwork): Promise<void> {
    const waiting = this.#waiting.get(network.netnsPath);
    this.#waiting.delete(network.netnsPath);
    this.#wiring.forget(network);
    const jail = await waiting?.catch(() => undefined);
    if (jail !== undefined) await this.remove(jail.id);
  }

  /** The jail that was prepared for this network, if it still lives, else a new one. */
  async take(network: MachineNetwork): Promise<Jail> {
    const waiting = this.#waiting.get(network.netnsPath);
    this.#waiting.delete(network.netnsPath);
    const jail = await waiting?.catch(() => undefined);
    if (jail !== undefined) {
      if (this.find(jail.id) !== undefined) return jail;
      await this.remove(jail.id);
    }
    return this.#start(network);
  }

  /** A jail whose process lives. */
  find(id: string): Jail | undefined {
    const jail = this.#read(id);
    return jail !== undefined && isOf(jail.pid, id) ? jail : undefined;
  }

  /** A jail by its files; its pid may be another process's by now. */
  #read(id: string): Jail | undefined {
    const root = join(this.#dir, id, "root");
    try {
      const pid = Number(readFileSync(join(root, `${basename(this.#program)}.pid`), "utf8"));
      if (!Number.isInteger(pid) || pid <= 1 || startTicks(pid) === undefined) return undefined;
      return {
        id,
        pid,
        uid: statSync(join(this.#dir, id)).uid,
        root,
        socketPath: join(this.#shortDir, id, "root", SOCKET),
      };
    } catch (error) {
      if (isMissing(error)) return undefined;
      throw error;
    }
  }

  list(): Promise<string[]> {
    return readdir(this.#dir);
  }

  /** Ends the process and removes the folder. Repeatable. Errors: internal, when the process does not end. */
  async remove(id: string): Promise<void> {
    await this.#cgroups.remove(id);
    await endProcesses(`jail ${id}`, () => {
      const pid = this.#read(id)?.pid;
      // A jailer that was ended half-way has written down nobody: then its process is looked for.
      return pid === undefined ? processesOf(id) : [pid].filter((known) => isOf(known, id));
    });
    const dir = join(this.#dir, id);
    const uid = await stat(dir).then(
      (found) => found.uid,
      () => undefined,
    );
    await rm(dir, { recursive: true, force: true });
    await rm(this.#logFile(id), { force: true });
    if (uid !== undefined) this.#uids.delete(uid);
  }

  /** Machines go on; what only this server used of them goes. */
  async close(): Promise<void> {
    await unlink(this.#shortDir).catch(ignoreMissing);
  }

  /** Ends all jails but those of machines. */
  async removeOthers(ofMachines: ReadonlySet<string>): Promise<void> {
    await Promise.allSettled(this.#waiting.values());
    this.#waiting.clear();
    const groups = this.#cgroups.list().filter((name) => NAME.test(name));
    for (const id of new Set([...(await this.list()), ...groups])) {
      if (ofMachines.has(id)) continue;
      await this.remove(id).catch((error: unknown) => {
        this.#options.logger.error("a jail without a machine stays until the next start", { reason: id, error });
      });
    }
  }

  /** Shows a file under a name inside the jail, where anybody may read it. It has to be readable by all. */
  async link(jail: Jail, source: string, name: string): Promise<void> {
    await link(source, join(jail.root, name)).catch((cause: unknown) => {
      if (!hasCode(cause, "EXDEV")) throw cause;
      throw new AenvError("unavailable", `${source} is on another file system than ${this.#options.dir}`, {
        cause,
        hint: "keep images, checkpoints and the driver's folder on one file system: machines get their files by links",
      });
    });
  }

  /** Lends a file of root's to the process, to write a snapshot into. The name is ours and the file stays root's: when its
   *  mode says so again, the process can write it no more. */
  async lend(jail: Jail, source: string, name: string): Promise<Lent> {
    const inside = `/${name}${BEING_WRITTEN}`;
    const path = join(jail.root, inside);
    await chown(source, 0, this.#options.firstUid);
    await chmod(source, 0o660);
    await link(source, path).catch(async (error: unknown) => {
      if (!hasCode(error, "EEXIST")) throw error;
      // Of a checkpoint that an earlier server did not finish.
      await unlink(path);
      await link(source, path);
    });
    return { inside, path };
  }

  /** Takes away the names of what was lent. Repeatable. */
  async takeBack(lent: readonly Lent[]): Promise<void> {
    await Promise.all(lent.map(({ path }) => unlink(path).catch(ignoreMissing)));
  }

  /** Likewise, of all that was ever lent to a process, also by an earlier server. */
  async takeBackAll(jail: Jail): Promise<void> {
    const names = (await readdir(jail.root)).filter((name) => name.endsWith(BEING_WRITTEN));
    await this.takeBack(names.map((name) => ({ inside: `/${name}`, path: join(jail.root, name) })));
  }

  /** Whether there are files that a snapshot is written into, or was before it failed. */
  writesSnapshot(jail: Jail): boolean {
    return readdirSync(jail.root).some((name) => name.endsWith(BEING_WRITTEN));
  }

  /** Hands a file of its root folder to the process. */
  async give(jail: Jail, path: string): Promise<void> {
    await chown(path, jail.uid, this.#options.firstUid);
  }

  /** What the serial console and Firecracker itself said last; undefined when nothing. */
  lastWords(id: string): string | undefined {
    try {
      return printable(readEnd(this.#logFile(id), LOG_TAIL_BYTES)).trim() || undefined;
    } catch {
      return undefined;
    }
  }

  async #start(network: MachineNetwork): Promise<Jail> {
    const { runner, jailerPath, firstUid } = this.#options;
    const id = newName();
    const uid = this.#newUid();
    // Its owner tells whose the uid is, also to a server started later.
    mkdirSync(join(this.#dir, id), { mode: 0o700 });
    try {
      await chown(join(this.#dir, id), uid, 0);
      await this.#cgroups.make(id);
      await this.#wiring.ensure(network);
      await runner.run(
        [
          jailerPath,
          ...["--id", id, "--exec-file", this.#program, "--uid", String(uid), "--gid", String(firstUid)],
          ...["--chroot-base-dir", join(this.#options.dir, "jails"), "--netns", network.netnsPath, "--new-pid-ns"],
          ...["--", "--api-sock", `/${SOCKET}`, "--level", "Warn"],
        ],
        { logFile: this.#logFile(id), timeoutMs: START_TIMEOUT_MS },
      );
      const jail = await this.#listening(id);
      this.#cgroups.join(id, jail.pid);
      await this.#close(jail);
      return jail;
    } catch (cause) {
      const said = this.lastWords(id);
      await this.remove(id);
      throw new AenvError("unavailable", `Firecracker did not start${said === undefined ? "" : `: ${said}`}`, {
        cause,
      });
    }
  }

  /** The jailer gives the folders to the process. From here on, before it sees anything of a guest, it can make no file, and
   *  put nothing in the place of one that we go by. */
  async #close({ root }: Jail): Promise<void> {
    for (const dir of [root, join(root, "dev"), join(root, "dev", "net")]) {
      await chown(dir, 0, 0);
      await chmod(dir, 0o755);
    }
    await rmdir(join(root, "run"));
    // Memory comes from files: nobody serves page faults.
    await unlink(join(root, "dev", "userfaultfd")).catch(ignoreMissing);
  }

  async #listening(id: string): Promise<Jail> {
    const giveUpAtMs = performance.now() + START_TIMEOUT_MS;
    for (let waitMs = 1; ; waitMs = Math.min(waitMs * 2, 50)) {
      // Not by its command line, which is empty for a moment while the jailer becomes Firecracker.
      const jail = this.#read(id);
      if (jail === undefined) throw new Error("it ended at once");
      if (await accepts(jail.socketPath)) return jail;
      if (performance.now() > giveUpAtMs) throw new Error(`no API socket within ${START_TIMEOUT_MS} ms`);
      await sleep(waitMs);
    }
  }

  #newUid(): number {
    const { firstUid } = this.#options;
    if (this.#uids.size >= UIDS - 1)
      throw new AenvError("exhausted", `all ${UIDS - 1} user ids for machines are in use`);
    for (;;) {
      const uid = firstUid + randomInt(1, UIDS);
      if (this.#uids.has(uid)) continue;
      this.#uids.add(uid);
      return uid;
    }
  }

  #logFile(id: string): string {
    return join(this.#logsDir, id);
  }
}

/** A guest writes there what it likes, and people read it on a terminal. */
function printable(text: string): string {
  return text.replace(/[^\P{C}\n\t]/gu, "");
}
