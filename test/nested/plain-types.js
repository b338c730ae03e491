/**
 * Preloaded into Node in the nested machine, whose processor is emulated: sources come there with their types stripped
 * already, under their own names, and Node is told not to do it again.
 */
import { readFileSync } from "node:fs";
import { registerHooks } from "node:module";
import { fileURLToPath } from "node:url";

registerHooks({
  load(url, context, nextLoad) {
    if (!url.startsWith("file:") || !url.endsWith(".ts")) return nextLoad(url, context);
    return { format: "module", source: readFileSync(fileURLToPath(url)), shortCircuit: true };
  },
});
