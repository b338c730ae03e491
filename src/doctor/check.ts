import type { HostFacts } from "./facts.ts";

export type CheckStatus = "ok" | "warn" | "fail";

/** `warn`: works, with a limit the text names. `fail`: sandboxes will not work until it is fixed. */
export interface Check {
  readonly id: string;
  readonly status: CheckStatus;
  readonly found: string;
  /** What to do about it; absent when ok. */
  readonly fix?: string;
}

export type Judgement = Omit<Check, "id">;
/** undefined: this host's choice of the driver does not turn on it. */
export type Rule = (facts: HostFacts) => Judgement | undefined;
