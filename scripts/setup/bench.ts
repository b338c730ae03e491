import { join } from "node:path";
import { edgeBenchEnv, edgeBenchSteps } from "./edge-bench.ts";
import { ensureRoot } from "./elevate.ts";
import { upstreamRunscPath, upstreamRunscStep } from "./go.ts";
import { runInNested } from "./nested.ts";
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
  await provide([...serverSteps, upstreamRunscStep, ...edgeBenchSteps]);
  return await show([process.execPath, join(root, "test", "bench", "main.ts"), ...process.argv.slice(2)], {
    env: { ...(await testEnv()), ...(await edgeBenchEnv()), AENV_BENCH_RUNSC: upstreamRunscPath() },
  });
}

/** With toy guests on this machine's own /dev/kvm, then with Linux guests in the nested machine, which runs anywhere: there
 *  Node is emulated too, so that its times tell of calls and copies only. */
async function benchFirecracker(): Promise<number> {
  await provide([...testSteps, ...nestedSteps]);
  const env = await testEnv();
  say("\nToy guests on this machine's /dev/kvm\n");
  const native = await show([process.execPath, join(root, "test", "host", "firecracker", "figures-toy.ts")], { env });
  say("\nLinux guests in the nested machine\n");
  const missing = await missingNested();
  if (missing !== undefined) throw new Error(`the nested machine cannot be made: ${missing}`);
  return (await runInNested(["test/nested/figures.ts"], env, say)) || native;
}

async function provide(steps: readonly Step[]): Promise<void> {
  await setUp(steps, (plan) => {
    say(plan);
    return Promise.resolve(true);
  });
}
