import type { CommandRunner } from "#lib/run";
import type { Plan } from "./plan.ts";

const TIMEOUT_MS = 20_000;
/** The kernel waits that long for each link it removes, or less. */
const REMOVAL_MS = 200;
/** One thing after the other: more threads would only be started and looked for. */
const env = { GOMAXPROCS: "1" };

/** What networks are made with. */
export interface SlotTools {
  readonly runner: CommandRunner;
  /** The program `netslot`. */
  readonly netslotPath: string;
}

/** Carries out a plan, in one process however many namespaces it takes. */
export async function applyPlan(tools: SlotTools, plan: Plan): Promise<void> {
  const { runner, netslotPath } = tools;
  const timeoutMs = TIMEOUT_MS + REMOVAL_MS * (plan.remove?.links?.length ?? 0);
  await runner.run([netslotPath, "apply"], { stdin: JSON.stringify(plan), env, timeoutMs });
}

/** Turns a text for `nft` into tables for plans. */
export async function compileRules({ runner, netslotPath }: SlotTools, text: string): Promise<string> {
  const { stdout } = await runner.run([netslotPath, "compile"], { stdin: text, env, timeoutMs: TIMEOUT_MS });
  return new TextDecoder().decode(stdout).trim();
}
