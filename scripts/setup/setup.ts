import { join } from "node:path";
import { baseStep, baseTreeStep } from "./base.ts";
import { cacheDir, withLock } from "./cache.js";
import { goStep, nativeStep, runscStep } from "./go.ts";
import { modulesStep } from "./modules.ts";
import { packagesStep } from "./packages.ts";
import { describePlan, type PlannedStep, planSteps, runSteps, type Step } from "./steps.ts";
import { pythonSdkStep } from "./venv.ts";

/** What a server needs. */
export const serverSteps: readonly Step[] = [packagesStep, modulesStep, goStep, nativeStep, runscStep, baseStep];
/** What all tests need. */
export const testSteps: readonly Step[] = [...serverSteps, baseTreeStep, pythonSdkStep];
/** What checking and generating need. */
export const checkSteps: readonly Step[] = [packagesStep, modulesStep, goStep];

/**
 * Does those of the steps that are not done yet.
 * @param agree told the plan when there is something to do; false ends the script
 */
export async function setUp(steps: readonly Step[], agree: (plan: string) => Promise<boolean>): Promise<void> {
  await withLock(join(cacheDir(), "lock"), async () => {
    const planned = await planSteps(steps);
    if (isDone(planned)) return;
    if (!(await agree(describePlan(planned)))) process.exit(1);
    await runSteps(planned);
  });
}

function isDone(planned: readonly PlannedStep[]): boolean {
  return planned.every(({ action }) => action === undefined);
}
