import { FAULT_POINTS } from "#lib/fault";
import { needsHostWithoutSwap } from "./operations.ts";
import type { Plan } from "./plan.ts";
import { Rounds } from "./round.ts";
import { type Harm, Violation } from "./violation.ts";
import type { World } from "./world.ts";

export interface RunOptions {
  readonly seed: number;
  /** Ends after the round that has brought the count of killed processes there, or with the last plan. */
  readonly kills: number;
  /** The rounds by their numbers. */
  readonly plans: Iterable<readonly [round: number, plan: Plan]>;
  /** Asked before each round: true ends the run early, in order. */
  readonly isStopped?: () => boolean;
  readonly say: (line: string) => void;
}

export interface RunResult {
  readonly rounds: number;
  readonly kills: number;
  /** `OPERATION/VICTIM` → processes killed; 0: none was found. */
  readonly killed: ReadonlyMap<string, number>;
  readonly harm: Readonly<Record<Harm, number>>;
  /** Points that nothing has passed. */
  readonly unpassed: readonly string[];
}

/** Rounds until enough was killed, or one has done harm: what comes after that says nothing. */
export async function runChaos(world: World, options: RunOptions): Promise<RunResult> {
  const { say, seed } = options;
  const rounds = new Rounds(world);
  const harm: Record<Harm, number> = { lost: 0, doubled: 0, wrong: 0, orphan: 0 };
  let done = 0;
  for (const [round, plan] of options.plans) {
    if (rounds.kills >= options.kills || options.isStopped?.() === true) break;
    if (needsHostWithoutSwap(plan.operation) && world.hasOtherSwap()) {
      say(`round ${round}: ${describe(plan)}: left out, this host has swap of others`);
      continue;
    }
    const startedAtMs = performance.now();
    done += 1;
    try {
      const outcome = await rounds.run(plan, seed ^ round);
      const ms = Math.round(performance.now() - startedAtMs);
      say(`round ${round}: ${describe(plan)}: ${outcome}; ${ms} ms, kills=${rounds.kills}`);
    } catch (error) {
      say(`round ${round}: ${describe(plan)}: ${error instanceof Error ? error.message : error}`);
      say(world.lastWords());
      say(`again: npm run chaos -- --seed ${seed} --from ${round} --kills 1`);
      if (!(error instanceof Violation)) throw error;
      harm[error.harm] += 1;
      return { rounds: done, kills: rounds.kills, killed: rounds.killed, harm, unpassed: [] };
    }
  }
  world.order([]);
  try {
    await rounds.finish();
  } catch (error) {
    if (!(error instanceof Violation)) throw error;
    say(`at the end: ${error.message}`);
    harm[error.harm] += 1;
  }
  const passed = world.passed();
  const { kills, killed } = rounds;
  return { rounds: done, kills, killed, harm, unpassed: FAULT_POINTS.filter((point) => !passed.has(point)) };
}

function describe({ operation, beside = [], orders }: Plan): string {
  const faults = orders.map(({ point, kill, error, delayMs, after }) => {
    const what = error ?? `kill ${kill?.join("+")}`;
    return `${what} at ${point}${delayMs === undefined ? "" : ` + ${delayMs} ms`}${after === undefined ? "" : ", second time"}`;
  });
  return `${[operation, ...beside].join(" and ")}, ${faults.join(", then ")}`;
}

export function summary({ rounds, kills, harm }: RunResult): string {
  const { lost, doubled, wrong, orphan } = harm;
  return `rounds=${rounds} kills=${kills} lost=${lost} doubled=${doubled} wrong=${wrong} orphans=${orphan}`;
}

/** Who was killed in the middle of what, and how often. */
export function table({ killed }: RunResult): string {
  return [...killed]
    .map(([what, count]) => `${what} ${count}`)
    .sort()
    .join("\n");
}

export function isClean({ harm }: RunResult): boolean {
  return Object.values(harm).every((count) => count === 0);
}
