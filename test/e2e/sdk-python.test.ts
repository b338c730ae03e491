import { describe, it } from "node:test";
import { runScenario } from "./scenario.ts";
import { sharedServer } from "./server.ts";

/** How many tests each scenario has. */
const SCENARIOS = {
  "sync_lifecycle.py": 10,
  "sync_commands.py": 8,
  "sync_files.py": 6,
  "all_async.py": 4,
};

describe("the stock Python SDK", { timeout: 240_000 }, () => {
  for (const [file, tests] of Object.entries(SCENARIOS)) {
    it(`passes ${file}`, async (t) => {
      await runScenario(await sharedServer(), file, tests, t);
    });
  }
});
