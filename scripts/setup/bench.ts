import { join } from "node:path";
import { ensureRoot } from "./elevate.ts";
import { runNested } from "./nested.ts";
import { missingNested, nestedSteps } from "./nested-system.ts";
import { root } from "./node.js";
import { show } from "./run.ts";
import { serverSteps, setUp, testSteps } from "./setup.ts";
import { type Step, say } from "./steps.ts";
import { testEnv } from "./test-env.ts";

const [first] = process.argv.slice(2);

await ensureRoot("to run sandboxes");
process.exitCode = first === "firecracker" ? await benchFirecracker() : await benchProduct();

async function benchProduct(): Promise<number> {
  await provide(serverSteps);
  return await show([process.execPath, join(root, "test", "bench", "main.ts"), ...process.argv.slice(2)], {
    env: await testEnv(),
  });
}

/** In the nested machine, so that it runs anywhere: its ratios tell of calls and copies, its times of nothing. */
async function benchFirecracker(): Promise<number> {
  await provide([...testSteps, ...nestedSteps]);
  const missing = await missingNested();
  if (missing !== undefined) throw new Error(`the nested machine cannot be made: ${missing}`);
  return await runNested(["test/nested/figures.ts"], await testEnv(), say);
}

async function provide(steps: readonly Step[]): Promise<void> {
  await setUp(steps, (plan) => {
    say(plan);
    return Promise.resolve(true);
  });
}
