import { existsSync, globSync, mkdtempSync, rmSync } from "node:fs";
import { availableParallelism, freemem } from "node:os";
import { join } from "node:path";
import { NESTED_MEMORY_MIB, type NestedEnd, runNestedMachine } from "./nested-machine.ts";
import { NestedPasses, nestedInputs, type Tested } from "./nested-passes.ts";
import { makeRunDisk } from "./nested-run-disk.ts";
import { missingNested, type NestedSystem, nestedSystem } from "./nested-system.ts";
import { root } from "./node.js";
import { say } from "./steps.ts";

/** Files of tests that have a machine to themselves. */
export interface Suite {
  readonly name: string;
  readonly files: readonly string[];
  /** Variables of the environment without which it is left out. */
  readonly needs: readonly string[];
  readonly tested: Tested;
  /** Beginnings of the names of the tests that are run, for a file of which most is too slow here. */
  readonly only?: readonly string[];
}

const FIRECRACKER = [
  ...["AENV_TEST_FIRECRACKER", "AENV_TEST_JAILER"],
  ...["AENV_TEST_GUEST_KERNEL", "AENV_TEST_GUEST_INITRD"],
];
/** The driver suite, and what meets the kernel's cgroups; the rest of gVisor's tests run on the host only. */
const GVISOR: Suite = {
  name: "gvisor",
  files: ["test/host/gvisor-driver.test.ts"],
  needs: ["AENV_TEST_RUNSC"],
  tested: "gvisor",
  only: [
    "driver gvisor",
    "every process of a machine is inside its cgroup",
    "memory that no process holds ends the machine",
  ],
};
/** How far each suite gives way to the one before it, in steps of `nice`: the longest is listed first, has a processor to itself,
 *  and the others fill what is left. */
const NICE_STEP = 3;
/** The longest one. The other files of `test/nested` share a machine: to start one, and Node in it, takes as much as some tests. */
const DRIVER_SUITE = "test/nested/firecracker.test.ts";
const TIMEOUT_MS = 900_000;
/** Followed by the process whose run it is. */
const RUN_DIRS = "/var/tmp/aenv-nested-";
/** What is there inside already, or of no use. */
const NOT_BROUGHT = ["PATH", "AENV_TEST_ROOTFS", "AENV_TEST_ROOTFS_TAR", "AENV_TEST_PYTHON"];
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
  const waiting: Suite[] = [];
  const notTested: string[] = [];
  for (const suite of suites()) {
    const wanting = suite.needs.filter((variable) => env[variable] === undefined);
    if (wanting.length === 0) waiting.push(suite);
    else notTested.push(`nested machine: ${suite.files.join(" and ")}, for want of ${wanting.join(", ")}`);
  }
  const counts: Counts = new Map();
  let failed = 0;
  const passesOf = async ({ tested }: Suite): Promise<NestedPasses | undefined> =>
    name === undefined ? new NestedPasses(await nestedInputs(env, tested)) : undefined;
  const toRun: { readonly suite: Suite; readonly passes: NestedPasses | undefined }[] = [];
  for (const suite of waiting) {
    const passes = await passesOf(suite);
    const before = cached ? passes?.find(suite.name) : undefined;
    if (before === undefined) toRun.push({ suite, passes });
    else say(`${suite.name.padEnd(17)} │ (cached) ${before}`);
  }
  if (toRun.length === 0) return { code: 0, notTested };
  using disk = await NestedDisk.make(new Map(toRun.map(({ suite }) => [suite.name, nodeArguments(suite, name)])), env);
  let nice = 0;
  const work = async (): Promise<void> => {
    for (let next = toRun.shift(); next !== undefined; next = toRun.shift()) {
      const startMs = performance.now();
      const { suite } = next;
      const ownNice = nice;
      nice += NICE_STEP;
      const run = (onLine: (line: string) => void): Promise<number> => runNested(disk, suite.name, ownNice, onLine);
      const code = await runSuite(suite, run, name, counts);
      if (code === 0) await next.passes?.add(next.suite.name, `passed in ${secondsSince(startMs)} s`);
      failed ||= code;
    }
  };
  await Promise.all(Array.from({ length: room() }, work));
  // As Node's runner ends, over all machines.
  for (const [what, count] of counts) say(`ℹ ${what} ${count}`);
  return { code: failed, notTested };
}

/** All of them, the one that takes longest first. */
export function suites(): Suite[] {
  const others = globSync("test/nested/**/*.test.ts", { cwd: root }).filter((file) => file !== DRIVER_SUITE);
  return [
    { name: "firecracker", files: [DRIVER_SUITE], needs: FIRECRACKER, tested: "firecracker" },
    GVISOR,
    { name: "guests", files: others.sort(), needs: FIRECRACKER, tested: "node" },
  ];
}

/** One process: starting another one costs seconds there. */
function nodeArguments({ files, only = [] }: Suite, name: string | undefined): string[] {
  const patterns = name === undefined ? only.map((start) => `^${start}`) : [name];
  const options = ["--test", "--test-reporter=spec", "--test-isolation=none"];
  return [...options, ...patterns.map((pattern) => `--test-name-pattern=${pattern}`), ...files];
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

/** The disk with the checkout and the commands that all machines of a run have in common. */
class NestedDisk implements Disposable {
  readonly #dir: string;
  readonly #system: NestedSystem;

  private constructor(dir: string, system: NestedSystem) {
    this.#dir = dir;
    this.#system = system;
  }

  get #path(): string {
    return join(this.#dir, "run.ext4");
  }

  /** `commands`: name → arguments of Node, from the root of the checkout. */
  static async make(
    commands: ReadonlyMap<string, readonly string[]>,
    env: Readonly<Record<string, string>>,
  ): Promise<NestedDisk> {
    const system = await nestedSystem();
    if (system === undefined) throw new Error("the nested machine is not set up: npm test -- nested does it");
    const disk = new NestedDisk(makeRunDir(), system);
    try {
      const brought = Object.fromEntries(Object.entries(env).filter(([variable]) => !NOT_BROUGHT.includes(variable)));
      const plain = [...QUIET_NODE, "--import", "/checkout/test/nested/plain-types.js"];
      await makeRunDisk(disk.#path, {
        commands: new Map([...commands].map(([name, args]) => [name, [...plain, ...args]])),
        env: { ...brought, AENV_TEST_SMALL_INITRD: system.guestInitrd, ...INSIDE },
      });
      return disk;
    } catch (error) {
      disk[Symbol.dispose]();
      throw error;
    }
  }

  /** Runs one of the commands in a machine of its own. */
  async run(command: string, nice: number, onLine: (line: string) => void): Promise<NestedEnd> {
    const startMs = performance.now();
    const [system, dir] = [this.#system, mkdtempSync(join(this.#dir, "m"))];
    const { end, processorS } = await runNestedMachine({
      ...{ system, dir, command, runDisk: this.#path },
      ...{ timeoutMs: TIMEOUT_MS, nice, onLine },
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

/** Runs Node with these arguments in a machine; see runNested. */
export async function runInNested(
  args: readonly string[],
  env: Readonly<Record<string, string>>,
  onLine: (line: string) => void,
): Promise<number> {
  using disk = await NestedDisk.make(new Map([["by-hand", args]]), env);
  return await runNested(disk, "by-hand", 0, onLine);
}

// By hand, as root, after `npm test -- nested` has set it up: node scripts/setup/nested.ts ARGUMENTS-OF-NODE
if (import.meta.main) {
  const { testEnv } = await import("./test-env.ts");
  const startMs = performance.now();
  const stamped = (line: string): void => say(`[${((performance.now() - startMs) / 1000).toFixed(1)} s] ${line}`);
  process.exitCode = await runInNested(process.argv.slice(2), await testEnv(), stamped);
}
