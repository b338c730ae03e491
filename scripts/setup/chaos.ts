import { join } from "node:path";
import { ensureRoot } from "./elevate.ts";
import { root } from "./node.js";
import { show } from "./run.ts";
import { serverSteps, setUp } from "./setup.ts";
import { say } from "./steps.ts";
import { testEnv } from "./test-env.ts";

await ensureRoot("to run sandboxes, and to kill what runs them");
await setUp(serverSteps, (plan) => {
  say(plan);
  return Promise.resolve(true);
});
process.exitCode = await show([process.execPath, join(root, "test", "chaos", "main.ts"), ...process.argv.slice(2)], {
  env: await testEnv(),
});
