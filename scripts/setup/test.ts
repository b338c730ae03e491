import { existsSync, globSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { cacheDir } from "./cache.js";
import { ensureRoot } from "./elevate.ts";
import { missingFirecracker } from "./firecracker-wheel.ts";
import { goEnv } from "./go.ts";
import { type NestedResult, nestedTests } from "./nested.ts";
import { nestedSteps } from "./nested-system.ts";
import { ownNodePath, root } from "./node.js";
import { run, show } from "./run.ts";
import { setUp, testSteps } from "./setup.ts";
import { say } from "./steps.ts";
import { guestKernelEnv, testEnv } from "./test-env.ts";

const USAGE = `npm test [-- PHASE… [--name PATTERN]]: sets up what the tests need, then runs them.

  unit   beside the sources; neither root nor network (npm run test:unit)
  go     vet and tests of native/, and a few seconds of made-up input to the guest agent
  host   as root: drivers, network, programs on this machine
  e2e    as root: whole servers, by HTTP, the CLI and the official SDKs
  nested as root: drivers, in an emulated machine with Debian's kernel, cgroup v2 and KVM

  Without a phase all of them, in this order.
  --name PATTERN   only tests with such a name (all but go)`;

type Phase = "unit" | "go" | "host" | "e2e" | "nested";
const PHASES: readonly Phase[] = ["unit", "go", "host", "e2e", "nested"];
type NodePhase = Exclude<Phase, "go" | "nested">;
const FILES: Readonly<Record<NodePhase, readonly string[]>> = {
  unit: ["src/**/*.test.ts", "scripts/**/*.test.ts", "test/*.test.ts"],
  host: ["test/host/**/*.test.ts"],
  e2e: ["test/e2e/**/*.test.ts"],
};
/** How many files run side by side: two cores are the least that tests are run on. */
const WIDTH: Readonly<Record<NodePhase, readonly string[]>> = {
  unit: ["--test-concurrency=3"],
  // Each with a server's worth of names on this host for itself.
  host: ["--test-concurrency=2"],
  // Each with a server for itself.
  e2e: ["--test-concurrency=2", `--test-global-setup=${join(root, "test", "e2e", "servers.ts")}`],
};
const FILE_TIMEOUT_MS = 600_000;
const FUZZED = ["./internal/envd/httpapi", "./internal/envd/archive"];

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { name: { type: "string" }, help: { type: "boolean", default: false } },
});
if (values.help) say(USAGE);
else await main();

async function main(): Promise<void> {
  const unknown = positionals.filter((phase) => !PHASES.includes(phase as Phase));
  if (unknown.length > 0) throw new Error(`${unknown.join(", ")}: no such phase\n\n${USAGE}`);
  const phases = positionals.length === 0 ? PHASES : PHASES.filter((phase) => positionals.includes(phase));

  const env = phases.every((phase) => phase === "unit") ? prepareUnit() : await prepareAll(phases);
  // The last thing printed is the summary of the test runner itself.
  for (const phase of phases) {
    say(`\n=== ${phase} ===`);
    const startMs = performance.now();
    const { code, notTested } = await runPhase(phase, env);
    if (code !== 0) process.exitCode = 1;
    for (const what of notTested) say(`!!! NOT TESTED: ${what}`);
    if (code !== 0 || notTested.length > 0 || phase !== phases.at(-1))
      say(`=== ${phase} ${outcome(code, notTested)} after ${seconds(startMs)} s ===`);
  }
}

async function runPhase(phase: Phase, env: Record<string, string>): Promise<NestedResult> {
  // Whoever asks for the phase by name wants it run.
  const cached = !positionals.includes("nested");
  if (phase === "nested")
    return await nestedTests(env, { cached, ...(values.name !== undefined && { name: values.name }) });
  return { code: phase === "go" ? await goTests() : await nodeTests(phase, env), notTested: [] };
}

function outcome(code: number, notTested: readonly string[]): string {
  if (code !== 0) return "FAILED";
  return notTested.length === 0 ? "passed" : "NOT (ALL) TESTED";
}

function seconds(startMs: number): string {
  return ((performance.now() - startMs) / 1000).toFixed(0);
}

function prepareUnit(): Record<string, string> {
  if (!existsSync(join(root, "node_modules")))
    throw new Error("node_modules is not there: run `npm ci` once (it needs the network).");
  return { PATH: ownNodePath() };
}

async function prepareAll(phases: readonly Phase[]): Promise<Record<string, string>> {
  await ensureRoot("by the tests that run sandboxes (npm run test:unit needs none)");
  await setUp(phases.includes("nested") ? [...testSteps, ...nestedSteps] : testSteps, (plan) => {
    say(`The tests need the following:\n\n${plan}`);
    return Promise.resolve(true);
  });
  const gap = missingFirecracker();
  if (gap !== undefined) say(`!!! ${gap}`);
  return await testEnv();
}

async function goTests(): Promise<number> {
  const env = { ...(await goEnv()), ...(await guestKernelEnv()) };
  const vet = await show(["go", "vet", "-C", "native", "./..."], { cwd: root, env });
  const tests = await show(["go", "test", "-C", "native", "./..."], { cwd: root, env });
  const tools = await show(["go", "test", "-C", "tools", "./internal/..."], { cwd: root, env });
  return vet || tests || tools || (await fuzz(env));
}

/** Tries made-up input on everything that takes it, some thousand each. To search longer: CONTRIBUTING.md. */
async function fuzz(env: Record<string, string>): Promise<number> {
  for (const folder of FUZZED) {
    const list = await run(["go", "test", "-C", "native", "-list", "^Fuzz", folder], { cwd: root, env });
    const targets = list.split("\n").filter((line) => line.startsWith("Fuzz"));
    if (targets.length === 0) throw new Error(`there is no fuzz target in native/${folder}`);
    for (const target of targets) {
      // Go takes up to a minute to make each input shorter that leads to new code, and tries none meanwhile. A number of tries, for one
      // that a limit of time ends may be told as "context deadline exceeded".
      const search = ["-fuzz", `^${target}$`, "-fuzztime", "2000x", "-fuzzminimizetime", "100x", "-parallel", "1"];
      const code = await show(["go", "test", "-C", "native", folder, "-run", "^$", ...search], { cwd: root, env });
      if (code !== 0) return code;
    }
  }
  return 0;
}

async function nodeTests(phase: NodePhase, env: Record<string, string>): Promise<number> {
  const files = FILES[phase].flatMap((pattern) => globSync(pattern, { cwd: root })).sort();
  if (files.length === 0) {
    say(`!!! there is no test for this phase (${FILES[phase].join(", ")})`);
    return 0;
  }
  const name = values.name === undefined ? [] : [`--test-name-pattern=${values.name}`];
  const options = ["--test", "--test-reporter=spec", `--test-timeout=${FILE_TIMEOUT_MS}`, ...WIDTH[phase], ...name];
  // Stripping types and compiling are done once, not by every file's process.
  const compiled = { NODE_COMPILE_CACHE: join(cacheDir(), "compile") };
  return await show([process.execPath, ...options, ...files], { cwd: root, env: { ...env, ...compiled } });
}
