import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { staleGenerated } from "./generated.ts";
import { goEnv } from "./go.ts";
import { ownNodePath, root } from "./node.js";
import { output } from "./run.ts";
import { checkSteps, setUp } from "./setup.ts";
import { progress, say } from "./steps.ts";

const USAGE = `npm run check [-- --fix]: format, lint, types, direction of imports, Go, generated code, lock file.

  --fix   formats and repairs what can be repaired`;

/** What it says when something is wrong; undefined when all is well. */
type CheckResult = Promise<string | undefined>;

const { values } = parseArgs({
  options: { fix: { type: "boolean", default: false }, help: { type: "boolean", default: false } },
});
if (values.help) say(USAGE);
else await check();

async function check(): Promise<void> {
  await setUp(checkSteps, (plan) => {
    say(plan);
    return Promise.resolve(true);
  });
  const checks: readonly (readonly [string, () => CheckResult])[] = [
    ["format and lint", lint],
    ["types", () => command([bin("tsc"), "--noEmit", "-p", "."])],
    ["types of the scripts", () => command([bin("tsc"), "--noEmit", "-p", "scripts"])],
    ["architecture", () => command([process.execPath, "--test", "--test-reporter=dot", "test/architecture.test.ts"])],
    ["Go: format", goFormat],
    ["Go: vet", goVet],
    ["generated code", generatedCode],
    ["lock file", lockFile],
  ];
  const failures: string[] = [];
  for (const [title, work] of checks) {
    const said = await progress(title, work, (problem) => problem === undefined);
    if (said === undefined) continue;
    failures.push(title);
    say(said);
  }
  if (failures.length === 0) return say("All checks hold.");
  say(`\nNot well: ${failures.join(", ")}.`);
  process.exitCode = 1;
}

async function lint(): CheckResult {
  return await command([bin("biome"), "check", ...(values.fix ? ["--write"] : []), "--error-on-warnings", "."]);
}

async function goFormat(): CheckResult {
  const { stdout, stderr, code } = await output(["gofmt", values.fix ? "-w" : "-l", "native", "tools"], {
    cwd: root,
    env: await goEnv(),
  });
  if (code !== 0) return stderr;
  return stdout.trim() === "" ? undefined : `not formatted (npm run check -- --fix):\n${stdout}`;
}

async function goVet(): CheckResult {
  for (const dir of ["native", "tools"]) {
    const problem = await command(["go", "vet", "-C", dir, "./..."], await goEnv());
    if (problem !== undefined) return problem;
  }
  return undefined;
}

async function generatedCode(): CheckResult {
  let stale: readonly string[];
  try {
    stale = await staleGenerated();
  } catch (error) {
    // Without a network the plugins may not be to be had. That is no fault of the change, but it has to be seen.
    if (process.env.CI) throw error;
    say(`  !!!  NOT CHECKED: the generators cannot be run here: ${error instanceof Error ? error.message : error}`);
    return undefined;
  }
  return stale.length === 0 ? undefined : `older or newer than proto/ (npm run generate):\n${stale.join("\n")}`;
}

/** A lock file that names hosts would bind everybody to the registry one person used. */
function lockFile(): CheckResult {
  const lock = JSON.parse(readFileSync(join(root, "package-lock.json"), "utf8")) as {
    packages: Record<string, { resolved?: string }>;
  };
  const bound = Object.entries(lock.packages).filter(([, { resolved }]) => resolved?.includes("://"));
  const said = `package-lock.json names hosts for ${bound.length} packages; .npmrc keeps them out when npm writes it`;
  return Promise.resolve(bound.length === 0 ? undefined : said);
}

async function command(argv: readonly string[], env: Record<string, string> = {}): CheckResult {
  const { code, stdout, stderr } = await output(argv, { cwd: root, env: { PATH: ownNodePath(), ...env } });
  return code === 0 ? undefined : `${stdout}${stderr}`.trim() || `${argv.join(" ")} exited with ${code}`;
}

function bin(name: string): string {
  const path = join(root, "node_modules", ".bin", name);
  if (!existsSync(path)) throw new Error(`${path} is not there: npm ci`);
  return path;
}
