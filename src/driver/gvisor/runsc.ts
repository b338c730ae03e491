import { join } from "node:path";
import { AenvError } from "#domain";
import type { CommandRunner } from "#lib/run";
import type { Bundle } from "./bundle.ts";

const VERSION_TIMEOUT_MS = 20_000;
const START_TIMEOUT_MS = 120_000;

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
