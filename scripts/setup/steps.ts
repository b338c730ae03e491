import { createInterface } from "node:readline/promises";

/** One thing that setting up may have to do. */
export interface Step {
  /** What it brings: "gVisor's runsc 2026-09-05". */
  readonly title: string;
  /** Seconds it takes on two cores when nothing is cached, for the plan. */
  readonly estimateS: number;
  /** What is to be done ("install mmdebstrap, nftables"), undefined when all is there. */
  pending(): Promise<string | undefined>;
  run(): Promise<void>;
}

export interface PlannedStep {
  readonly step: Step;
  readonly action: string | undefined;
}

export async function planSteps(steps: readonly Step[]): Promise<readonly PlannedStep[]> {
  const planned: PlannedStep[] = [];
  for (const step of steps) planned.push({ step, action: await step.pending() });
  return planned;
}

export function describePlan(planned: readonly PlannedStep[]): string {
  const lines = planned.map(({ step, action }) =>
    action === undefined
      ? `  ready  ${step.title}`
      : `  to do  ${step.title}: ${action} (about ${duration(step.estimateS)})`,
  );
  const totalS = planned.reduce((sum, { step, action }) => sum + (action === undefined ? 0 : step.estimateS), 0);
  return `${lines.join("\n")}\n${totalS === 0 ? "  Nothing to install or build." : `  About ${duration(totalS)} on two cores.`}\n`;
}

/** Asks on the terminal; without one the answer is yes. */
export async function confirm(question: string): Promise<boolean> {
  if (!process.stdin.isTTY) return true;
  const terminal = createInterface({ input: process.stdin, output: process.stdout });
  try {
    const answer = await terminal.question(`${question} [Y/n] `);
    return !/^n/i.test(answer.trim());
  } finally {
    terminal.close();
  }
}

/** Asks for a line of text on the terminal. */
export async function ask(question: string): Promise<string> {
  const terminal = createInterface({ input: process.stdin, output: process.stdout });
  try {
    return (await terminal.question(question)).trim();
  } finally {
    terminal.close();
  }
}

/** Does what is to be done, in order. A step that an earlier one has done meanwhile is not run again. */
export async function runSteps(planned: readonly PlannedStep[]): Promise<void> {
  for (const { step, action } of planned) {
    if (action === undefined || (await step.pending()) === undefined) continue;
    await progress(step.title, () => step.run());
  }
}

/**
 * Runs `work` with a line that says how long it has been going.
 * @param isGood whether what `work` returned counts as success; a throw never does
 */
export async function progress<T>(
  title: string,
  work: () => Promise<T>,
  isGood = (_result: T): boolean => true,
): Promise<T> {
  const startMs = performance.now();
  const elapsed = (): string => `${((performance.now() - startMs) / 1000).toFixed(1)} s`;
  const live = process.stdout.isTTY;
  if (live) process.stdout.write(`  …  ${title}`);
  const timer = live ? setInterval(() => process.stdout.write(`\r  …  ${title} ${elapsed()} `), 500) : undefined;
  const finish = (mark: string): void => {
    clearInterval(timer);
    process.stdout.write(`${live ? "\r" : ""}  ${mark}  ${title} (${elapsed()})\n`);
  };
  try {
    const result = await work();
    finish(isGood(result) ? "ok" : "!!");
    return result;
  } catch (error) {
    finish("!!");
    throw error;
  }
}

export function say(text: string): void {
  process.stdout.write(`${text}\n`);
}

function duration(seconds: number): string {
  return seconds < 90 ? `${seconds} s` : `${Math.ceil(seconds / 60)} min`;
}
