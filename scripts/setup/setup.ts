import { join } from "node:path";
import { baseStep, baseTreeStep } from "./base.ts";
import { cacheDir, withLock } from "./cache.js";
import { interpreterStep } from "./code-interpreter.ts";
import { firecrackerStep, usesOurFirecracker, type VirtualizationConfig, wantsFirecracker } from "./firecracker.ts";
import { firecrackerWheelStep } from "./firecracker-wheel.ts";
import { goStep, nativeStep, runscStep } from "./go.ts";
import { guestKernelStep } from "./guest-kernel.ts";
import { modulesStep } from "./modules.ts";
import { packagesStep } from "./packages.ts";
import { describePlan, type PlannedStep, planSteps, runSteps, type Step } from "./steps.ts";
import { pythonSdkStep } from "./venv.ts";

/** What every server needs. */
export const serverSteps: readonly Step[] = [packagesStep, modulesStep, goStep, nativeStep, runscStep, baseStep];
/** What a server with this configuration needs. Where the host chooses, gVisor will do in the place of Firecracker. */
export async function serverStepsFor(config: VirtualizationConfig): Promise<readonly Step[]> {
  if (!(await wantsFirecracker(config))) return serverSteps;
  const more = usesOurFirecracker(config) ? [guestKernelStep, firecrackerStep] : [guestKernelStep];
  if ((config.virtualization ?? "auto") !== "auto") return [...serverSteps, ...more];
  const withoutIt = "So sandboxes will run by gVisor, not by Firecracker.";
  return [...serverSteps, ...more.map((step) => ({ ...step, withoutIt }))];
}
/** What all tests need. */
export const testSteps: readonly Step[] = [
  ...serverSteps,
  guestKernelStep,
  baseTreeStep,
  interpreterStep,
  pythonSdkStep,
  firecrackerWheelStep,
];
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
