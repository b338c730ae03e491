import { existsSync, globSync, mkdtempSync, rmSync } from "node:fs";
import { availableParallelism, freemem } from "node:os";
import { join } from "node:path";
import { type Bundle, bundle } from "./nested-bundle.ts";
import { NESTED_MEMORY_MIB, type NestedEnd, runNestedMachine } from "./nested-machine.ts";
import { NestedPasses, nestedInputs } from "./nested-passes.ts";
import { makeRunDisk, type NestedCommand, scriptName } from "./nested-run-disk.ts";
import { type Suite, suites, testOptions } from "./nested-suites.ts";
import { missingNested, type NestedSystem, nestedSystem } from "./nested-system.ts";
import { say } from "./steps.ts";

/** How far each suite gives way to the one before it, in steps of `nice`, for the longest is listed first. A little only: on a slow
 *  host a machine with a third of a processor starts its guests too slowly for all patience. */
const NICE_STEP = 1;
const TIMEOUT_MS = 900_000;
/** Followed by the process whose run it is. */
const RUN_DIRS = "/var/tmp/aenv-nested-";
/** What is there inside already, or of no use. */
const NOT_TOLD = ["PATH", "AENV_TEST_ROOTFS", "AENV_TEST_ROOTFS_TAR", "AENV_TEST_PYTHON"];
/** Machine code that V8 makes as it goes is translated once more by the emulator, and threads that help have its one processor change
 *  between address spaces twice as often: without both a machine takes a tenth less. */
const QUIET_NODE = ["--jitless", "--single-threaded", "--min-semi-space-size=16"];
/** How the tests find there what is there already. */
const INSIDE = {
  AENV_TEST_ROOTFS: "/image",
  AENV_TEST_IMAGE: "/data/image.erofs",
  /** An emulated processor, for which nothing is cached yet. */
  AENV_TEST_SLOWNESS: "8",
};

/** Counts of Node's test runner, as it names them. */
type Counts = Map<string, number>;

/** What came of the tests: an exit code, and what could not be tested, each with its reason. */
export interface NestedResult {
  readonly code: number;
  readonly notTested: readonly string[];
}

export interface NestedOptions {
  /** Only tests with such a name. */
  readonly name?: string;
  /** Suites that have passed with the very same inputs before are not run again, as with `go test`. */
  readonly cached: boolean;
}

/** What a machine runs, and how its errors are told. */
type Program = Bundle & NestedCommand;

/** A suite, and what a machine runs for it. */
interface Work {
  readonly suite: Suite;
  readonly program: Program;
  /** None where only some of the tests are run. */
  readonly passes: NestedPasses | undefined;
}

/**
 * Runs the suites that need Debian's kernel, cgroup v2 and KVM in machines that emulate all three, as many at the same time as
 * there are processors and memory for. What cannot be tested for want of something is said, and fails nothing.
 */
export async function nestedTests(
  env: Readonly<Record<string, string>>,
  { name, cached }: NestedOptions,
): Promise<NestedResult> {
  const missing = await missingNested();
  if (missing !== undefined) return { code: 0, notTested: [`nested machine: ${missing}`] };
  const notTested: string[] = [];
  const toRun: Work[] = [];
  for (const suite of suites()) {
    const wanting = suite.needs.filter((variable) => env[variable] === undefined);
    if (wanting.length > 0) {
      notTested.push(`nested machine: ${suite.files.join(" and ")}, for want of ${wanting.join(", ")}`);
      continue;
    }
    const program = { ...(await bundle(suite.files)), options: testOptions(suite, name), env: told(env, suite) };
    const passes = name === undefined ? new NestedPasses(await nestedInputs(program)) : undefined;
    const before = cached ? passes?.find(suite.name) : undefined;
    if (before === undefined) toRun.push({ suite, program, passes });
    else say(`${suite.name.padEnd(17)} │ (cached) ${before}`);
  }
  if (toRun.length === 0) return { code: 0, notTested };
  using disk = await NestedDisk.make(new Map(toRun.map(({ suite, program }) => [suite.name, program])));
  return { code: await runAll(disk, toRun, name), notTested };
}

/** As many at a time as there is room for. Returns the exit code of one that failed, 0 when none did. */
async function runAll(disk: NestedDisk, waiting: Work[], name: string | undefined): Promise<number> {
  const counts: Counts = new Map();
  let [failed, nice] = [0, 0];
  const work = async (): Promise<void> => {
    for (let next = waiting.shift(); next !== undefined; next = waiting.shift()) {
      const startMs = performance.now();
      const { suite, passes } = next;
      const ownNice = nice;
      nice += NICE_STEP;
      const run = (onLine: (line: string) => void): Promise<number> => runNested(disk, suite.name, ownNice, onLine);
      const code = await runSuite(suite, run, name, counts);
      if (code === 0) await passes?.add(suite.name, `passed in ${secondsSince(startMs)} s`);
      failed ||= code;
    }
  };
  await Promise.all(Array.from({ length: room() }, work));
  // As Node's runner ends, over all machines.
  for (const [what, count] of counts) say(`ℹ ${what} ${count}`);
  return failed;
}

/** The variables that a suite is told: what others alone need is nothing to it. */
function told(env: Readonly<Record<string, string>>, suite?: Suite): Record<string, string> {
  const others = suite === undefined ? [] : suites().flatMap(({ needs }) => needs);
  const isTold = (variable: string): boolean =>
    !NOT_TOLD.includes(variable) && (!others.includes(variable) || suite?.needs.includes(variable) === true);
  return Object.fromEntries(Object.entries(env).filter(([variable]) => isTold(variable)));
}

async function runSuite(
  { name: suite, only = [] }: Suite,
  run: (onLine: (line: string) => void) => Promise<number>,
  name: string | undefined,
  counts: Counts,
): Promise<number> {
  const tell = (line: string): void => say(`${suite.padEnd(17)} │ ${line}`);
  let tests = 0;
  const code = await run((line) => {
    tell(line);
    const [, what = "", count] = /^ℹ (\w+) (\d+)$/.exec(line) ?? [];
    if (count === undefined) return;
    counts.set(what, (counts.get(what) ?? 0) + Number(count));
    if (what === "tests") tests = Number(count);
  });
  const least = name === undefined ? Math.max(only.length, 1) : 0;
  if (code !== 0 || tests >= least) return code;
  tell(`!!! Only ${tests} tests have run, and ${least} were meant to: is one named otherwise now?`);
  return 1;
}

/**
 * Runs one of the disk's commands in a machine. A machine that breaks says nothing of the tests, and is tried once more. Returns
 * Node's exit code, 1 when there is none.
 */
async function runNested(
  disk: NestedDisk,
  command: string,
  nice: number,
  onLine: (line: string) => void,
): Promise<number> {
  let end = await disk.run(command, nice, onLine);
  if (end.how === "broke") {
    report(end, onLine);
    onLine("!!! Not the tests but the machine failed: once more, from the start");
    end = await disk.run(command, nice, onLine);
  }
  if (end.how === "exited") return end.code;
  report(end, onLine);
  return 1;
}

function report(end: Exclude<NestedEnd, { how: "exited" }>, onLine: (line: string) => void): void {
  onLine(`!!! The nested machine ${end.how}: ${end.why}. The last its kernel said:`);
  for (const line of end.kernel) onLine(`    ${line}`);
}

/** The disk with the programs that the machines of a run are told to run, by their names. */
class NestedDisk implements Disposable {
  readonly #dir: string;
  readonly #system: NestedSystem;
  readonly #programs: ReadonlyMap<string, Program>;

  private constructor(system: NestedSystem, programs: ReadonlyMap<string, Program>) {
    this.#dir = makeRunDir();
    this.#system = system;
    this.#programs = programs;
  }

  get #path(): string {
    return join(this.#dir, "run.ext4");
  }

  static async make(programs: ReadonlyMap<string, Program>): Promise<NestedDisk> {
    const system = await nestedSystem();
    if (system === undefined) throw new Error("the nested machine is not set up: npm test -- nested does it");
    const disk = new NestedDisk(system, programs);
    try {
      const ofAll = { AENV_TEST_SMALL_INITRD: system.guestInitrd, ...INSIDE };
      const commands = [...programs].map(([name, { script, options, env }]) => {
        return [name, { script, options: [...QUIET_NODE, ...options], env: { ...env, ...ofAll } }] as const;
      });
      await makeRunDisk(disk.#path, new Map(commands));
      return disk;
    } catch (error) {
      disk[Symbol.dispose]();
      throw error;
    }
  }

  /** Runs one of the programs in a machine of its own. */
  async run(command: string, nice: number, onLine: (line: string) => void): Promise<NestedEnd> {
    const startMs = performance.now();
    const [system, dir] = [this.#system, mkdtempSync(join(this.#dir, "m"))];
    const program = this.#programs.get(command);
    const { end, processorS } = await runNestedMachine({
      ...{ system, dir, command, runDisk: this.#path },
      ...{ timeoutMs: TIMEOUT_MS, nice },
      onLine: (line) => onLine(program?.readable(line, scriptName(command)) ?? line),
    });
    onLine(`(${secondsSince(startMs)} s with the machine, ${processorS.toFixed(0)} s of a processor)`);
    return end;
  }

  [Symbol.dispose](): void {
    rmSync(this.#dir, { recursive: true, force: true });
  }
}

function secondsSince(startMs: number): string {
  return ((performance.now() - startMs) / 1000).toFixed(0);
}

/** On a disk, for it holds one. Those of runs that were killed go first. */
function makeRunDir(): string {
  for (const dir of globSync(`${RUN_DIRS}*`)) {
    const pid = /(\d+)-\w+$/.exec(dir)?.[1];
    if (!existsSync(`/proc/${pid}`)) rmSync(dir, { recursive: true, force: true });
  }
  return mkdtempSync(`${RUN_DIRS}${process.pid}-`);
}

/**
 * For how many machines. One more than there are processors: a machine waits now and then, for its disk or for time to pass, and
 * with one more the processors are busy until the very end, however long each suite takes.
 */
function room(): number {
  const byMemory = Math.floor(freemem() / ((NESTED_MEMORY_MIB + 512) * 1024 ** 2));
  return Math.max(1, Math.min(availableParallelism() + 1, byMemory));
}

/** Runs Node with these options and files of the checkout in a machine; see runNested. */
export async function runInNested(
  args: readonly string[],
  env: Readonly<Record<string, string>>,
  onLine: (line: string) => void,
): Promise<number> {
  const [files, options] = [args.filter((arg) => !arg.startsWith("-")), args.filter((arg) => arg.startsWith("-"))];
  using disk = await NestedDisk.make(new Map([["by-hand", { ...(await bundle(files)), options, env: told(env) }]]));
  return await runNested(disk, "by-hand", 0, onLine);
}

// By hand, as root, after `npm test -- nested` has set it up: node scripts/setup/nested.ts --OPTION-OF-NODE=VALUE… FILE…
if (import.meta.main) {
  const { testEnv } = await import("./test-env.ts");
  const startMs = performance.now();
  const stamped = (line: string): void => say(`[${((performance.now() - startMs) / 1000).toFixed(1)} s] ${line}`);
  process.exitCode = await runInNested(process.argv.slice(2), await testEnv(), stamped);
}
