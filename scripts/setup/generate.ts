import { generate } from "./generated.ts";
import { root } from "./node.js";
import { checkSteps, setUp } from "./setup.ts";
import { progress, say } from "./steps.ts";

await setUp(checkSteps, (plan) => {
  say(plan);
  return Promise.resolve(true);
});
await progress("code generated from proto/", () => generate(root));
