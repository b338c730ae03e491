import { join } from "node:path";
import { AenvError } from "#domain";
import type { CommandRunner } from "#lib/run";
import type { CheckpointOptions } from "../driver.ts";
import type { Bundle } from "./bundle.ts";

const VERSION_TIMEOUT_MS = 20_000;
const START_TIMEOUT_MS = 120_000;
const CHECKPOINT_TIMEOUT_MS = 600_000;

/** The file of a checkpoint that holds the memory. */
const PAGES = "pages.img";
/** Names a file that our runsc has written out while it grows (tools/cmd/runsc). */
const WRITTEN_OUT = "AENV_WRITTEN_OUT";
/** runsc's name for a checkpoint of file systems alone. */
const DISK_CHECKPOINT = "fscheckpoint";

/** How every sandbox is made. */
const SANDBOX_FLAGS = [
  "--platform=systrap",
  "--network=sandbox",
  "--allow-suid",
  "--net-raw",
  // What has to fit is held by digests: image, agent, runsc version.
  "--restore-spec-validation=ignore",
  // Advice about the host belongs into `aenvd doctor`.
  "--host-settings=ignore",
];

/** The runsc program, started through the runner. */
export class Runsc {
  readonly path: string;
  readonly version: string;
  /** Where runsc keeps its records and the control sockets. */
  readonly root: string;
  readonly #runner: CommandRunner;

  private constructor(path: string, version: string, root: string, runner: CommandRunner) {
    this.path = path;
    this.version = version;
    this.root = root;
    this.#runner = runner;
  }

  /** Errors: unavailable, when it does not run, does not know its version or a flag it will be started with. */
  static async open(path: string, root: string, runner: CommandRunner): Promise<Runsc> {
    const said = await runner
      .run([path, ...SANDBOX_FLAGS, "--version"], { timeoutMs: VERSION_TIMEOUT_MS })
      .catch((cause) => {
        throw new AenvError("unavailable", `runsc does not run: ${path}`, {
          cause,
          hint: "build it again: npm run up",
        });
      });
    return new Runsc(path, parseVersion(new TextDecoder().decode(said.stdout), path), root, runner);
  }

  /** Makes the sandbox and starts its first process, on the disk of a checkpoint of the disk alone if there is one. One runsc
   *  does both, which saves the start of another. */
  async run(id: string, bundle: Bundle, upper: string, diskBytes: number, diskFrom?: string): Promise<void> {
    const disk = diskFrom === undefined ? [] : [`--fs-restore-image-path=${diskFrom}`];
    await this.#start("run", id, bundle, upper, diskBytes, disk);
  }

  /** Makes the sandbox and restores a checkpoint into it. */
  async restore(id: string, bundle: Bundle, upper: string, diskBytes: number, checkpointDir: string): Promise<void> {
    await this.#start("restore", id, bundle, upper, diskBytes, [`--image-path=${checkpointDir}`]);
  }

  /** Writes the state of a sandbox, which goes on (or stays paused) whether this succeeds or fails. */
  async checkpoint(
    id: string,
    dir: string,
    { capture, durable }: Omit<CheckpointOptions, "keepRunning">,
  ): Promise<void> {
    const what = capture === "disk" ? [DISK_CHECKPOINT, "--path=/"] : ["checkpoint", "--exclude-committed-zero-pages"];
    await this.#runner.run(
      // Without --leave-running a sandbox ends even when its state could not be written.
      [this.path, `--root=${this.root}`, ...what, `--image-path=${dir}`, "--leave-running", id],
      { timeoutMs: CHECKPOINT_TIMEOUT_MS, ...(durable && { env: { [WRITTEN_OUT]: join(dir, PAGES) } }) },
    );
  }

  /** True of the command line of a process that writes a checkpoint of this sandbox. */
  writesCheckpoint(args: readonly string[], id: string): boolean {
    return this.owns(args) && args.includes(id) && ["checkpoint", DISK_CHECKPOINT].some((name) => args.includes(name));
  }

  /** A process of runsc has no other mark of whose it is than its command line. */
  owns(args: readonly string[]): boolean {
    return args.includes(`--root=${this.root}`);
  }

  /** What runsc leaves in its root for a machine: its record, the record's lock, the control socket. */
  files(id: string): string[] {
    const record = `${id}_sandbox:${id}`;
    return [this.socket(id), join(this.root, `${record}.state`), join(this.root, `${record}.lock`)];
  }

  socket(id: string): string {
    return join(this.root, `runsc-${id}.sock`);
  }

  async #start(
    command: string,
    id: string,
    bundle: Bundle,
    upper: string,
    diskBytes: number,
    more: readonly string[],
  ): Promise<void> {
    const argv = [
      this.path,
      `--root=${this.root}`,
      `--log=${bundle.logFile}`,
      ...SANDBOX_FLAGS,
      `--overlay2=root:dir=${upper},size=${diskBytes}`,
      command,
      "--detach",
      `--bundle=${bundle.dir}`,
      `--pid-file=${bundle.pidFile}`,
      ...more,
      id,
    ];
    // The guest's first process is given runsc's own standard files, and could fill the disk through any that is a file.
    await this.#runner.run(argv, { discardOutput: true, timeoutMs: START_TIMEOUT_MS });
  }
}

/** From `runsc --version`, whose first line is `runsc version X`. */
export function parseVersion(said: string, path: string): string {
  const version = /^runsc version (\S+)$/m.exec(said)?.[1];
  if (version === undefined || version === "VERSION_MISSING") {
    throw new AenvError(
      "unavailable",
      `${path} does not know its version, which says which checkpoints it can restore`,
      {
        hint: "build runsc with -ldflags '-X gvisor.dev/gvisor/runsc/version.version=PIN', or again by: npm run up",
      },
    );
  }
  return version;
}
