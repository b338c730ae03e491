import type { Check } from "./check.ts";
import { checkFacts } from "./checks.ts";
import { type ProbeOptions, probeHost } from "./probe.ts";

export type { Check, CheckStatus } from "./check.ts";
export type { ProbeOptions } from "./probe.ts";
export { exitCodeFor, formatChecks } from "./report.ts";

/** What this host can do, what is missing and how to fix it. Tries things for real (a namespace, a mount, a sandbox) and
 *  leaves nothing behind. */
export async function examineHost(options: ProbeOptions): Promise<readonly Check[]> {
  return checkFacts(await probeHost(options));
}
