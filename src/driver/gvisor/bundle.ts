import { mkdirSync, readFileSync, readlinkSync, symlinkSync, writeFileSync } from "node:fs";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { isMissing, readEnd } from "#lib/files";
import type { MachineSpec } from "../driver.ts";
import { ociSpec } from "./spec.ts";

const LOG_TAIL_BYTES = 8 * 1024;
/** runsc writes its errors one after another, with nothing in between. */
const LOGGED_MESSAGE = /"msg":("(?:[^"\\]|\\.)*")/g;

/** The folder of one machine: what runsc is told, and what it says. */
export class Bundle {
  readonly dir: string;

  constructor(machinesDir: string, id: string) {
    this.dir = join(machinesDir, id);
  }

  /** Errors of runsc and of the sandbox. The guest writes nowhere: its standard files are /dev/null. */
  get logFile(): string {
    return join(this.dir, "runsc.log");
  }
  get pidFile(): string {
    return join(this.dir, "pid");
  }
  get #versionFile(): string {
    return join(this.dir, "version");
  }
  /** The machine's own folder below `uppersDir`, so that a runsc killed at the wrong moment leaves nothing there for good. */
  get #upperLink(): string {
    return join(this.dir, "upper");
  }

  /** Throws EEXIST when the id has been used. */
  make(): void {
    mkdirSync(this.dir, { mode: 0o700 });
  }

  /** Returns the folder for the writable layer. `version` is that of the runsc the machine will run on. */
  fill(spec: MachineSpec, uppersDir: string, cgroupPath: string, version: string): string {
    const upper = join(uppersDir, spec.id);
    symlinkSync(upper, this.#upperLink);
    mkdirSync(upper, { mode: 0o700 });
    writeFileSync(join(this.dir, "config.json"), JSON.stringify(ociSpec(spec, cgroupPath)));
    writeFileSync(this.#versionFile, version);
    return upper;
  }

  /** Pid of the sandbox process; undefined until runsc has written it. */
  readPid(): number | undefined {
    try {
      const pid = Number(readFileSync(this.pidFile, "utf8"));
      return Number.isInteger(pid) && pid > 1 ? pid : undefined;
    } catch (error) {
      if (isMissing(error)) return undefined;
      throw error;
    }
  }

  /** Throws ENOENT when the bundle was never filled. */
  readVersion(): string {
    return readFileSync(this.#versionFile, "utf8");
  }

  /** What the end of the log says; undefined when nothing was said. */
  logTail(): string | undefined {
    try {
      const end = readEnd(this.logFile, LOG_TAIL_BYTES).trim();
      const messages = Array.from(end.matchAll(LOGGED_MESSAGE), ([, text = '""']) => JSON.parse(text) as string);
      // Not what runsc writes, or the middle of a long message: better than nothing.
      return messages.join("\n").trim() || end || undefined;
    } catch {
      return undefined;
    }
  }

  /** Repeatable. */
  async remove(): Promise<void> {
    try {
      await rm(readlinkSync(this.#upperLink), { recursive: true, force: true });
    } catch (error) {
      if (!isMissing(error)) throw error;
    }
    await rm(this.dir, { recursive: true, force: true });
  }
}
