import { createInterface } from "node:readline/promises";

/** Says how far something is, beside its title: "3.1 of 9.8 MiB". */
export type Note = (text: string) => void;

/** One thing that setting up may have to do. */
export interface Step {
  /** What it brings: "gVisor's runsc 2026-09-05". */
  readonly title: string;
  /** Seconds it takes on two cores when nothing is cached, for the plan. */
  readonly estimateS: number;
  /** What is to be done ("install mmdebstrap, nftables"), undefined when all is there. */
  pending(): Promise<string | undefined>;
  run(note: Note): Promise<void>;
  /** What its failure means, where all else can do without it: that is said then, and the rest goes on. */
  readonly withoutIt?: string;
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

/**
 * Does what is to be done, in order. A step that an earlier one has done meanwhile is not run again.
 * @throws what a step throws that cannot be done without
 */
export async function runSteps(planned: readonly PlannedStep[]): Promise<void> {
  for (const { step, action } of planned) {
    if (action === undefined || (await step.pending()) === undefined) continue;
    try {
      await progress(step.title, (note) => step.run(note));
    } catch (error) {
      if (step.withoutIt === undefined) throw error;
      say(`${error instanceof Error ? error.message : String(error)}\n${step.withoutIt}`);
    }
  }
}

/** Control sequence of terminals: clears from the cursor to the end of the line. */
const ERASE_REST = "\x1b[K";

/**
 * Runs `work` with a line that says how long it has been going and, on a terminal, what it notes.
 * @param isGood whether what `work` returned counts as success; a throw never does
 */
export async function progress<T>(
  title: string,
  work: (note: Note) => Promise<T>,
  isGood = (_result: T): boolean => true,
): Promise<T> {
  const startMs = performance.now();
  const elapsed = (): string => `${((performance.now() - startMs) / 1000).toFixed(1)} s`;
  const live = process.stdout.isTTY;
  if (live) process.stdout.write(`  …  ${title}`);
  let noted = "";
  const show = (): boolean => process.stdout.write(`\r  …  ${title} ${elapsed()} ${noted}${ERASE_REST}`);
  const timer = live ? setInterval(show, 500) : undefined;
  const finish = (mark: string): void => {
    clearInterval(timer);
    process.stdout.write(`${live ? "\r" : ""}  ${mark}  ${title} (${elapsed()})${live ? ERASE_REST : ""}\n`);
  };
  try {
    const result = await work((text) => {
      noted = text;
    });
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
