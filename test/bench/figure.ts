import type { TestConfig } from "../e2e/start.ts";
import type { BenchContext } from "./context.ts";
import { median, percentile } from "./statistics.ts";

/**
 * One promise in numbers. A new one is a file in figures/ that exports such a value, and a line in main.ts.
 */
export interface Figure {
  /** Name for `--only` and in the JSON. */
  readonly name: string;
  /** Of figures that `--only` takes together, such as one for several sizes. */
  readonly group?: string;
  /** What is measured, in a few words. */
  readonly title: string;
  readonly unit: "ms" | "leftovers" | "KiB" | "MiB" | "% of a core";
  readonly bar: Bar;
  /** Of the server's configuration, where it is not the default that is measured. */
  readonly settings?: Partial<TestConfig>;
  run(context: BenchContext): Promise<Measurement>;
}

/** A server on which nothing stands ready: each start and each resume is a restore. */
export const NOTHING_READY: Partial<TestConfig> = { memoryBudgetMib: 0, idleAfterMs: 0 };

/** What a figure needs is not there, on this machine or in this server: it is said, and is no failure of the product. */
export class MissingError extends Error {}

/** `baseline`: the median is at most `factor` × the baseline's + `plus`. `absolute`: it is at most `most`, and the
 *  99th percentile at most `p99` where that is said. */
export type Bar =
  | { readonly kind: "baseline"; readonly factor: number; readonly plus: number }
  | { readonly kind: "absolute"; readonly most: number; readonly p99?: number };

export interface Measurement {
  /** In the figure's unit. */
  readonly samples: readonly number[];
  /** How many things `samples` tells of, where that is not its length. */
  readonly count?: number;
  readonly baseline?: Baseline;
  /** Lines for people: where the time goes, what else was seen. */
  readonly notes: readonly string[];
}

export interface Baseline {
  readonly samples: readonly number[];
  /** What was run, as a reader could repeat it. */
  readonly command: string;
}

/** A figure's line in the JSON. `ratio` is median / baseline and `bar` the highest it may be; without a baseline both are
 *  null, and `bar` is the highest the median may be. */
export interface Result {
  readonly n: number;
  readonly median: number;
  readonly p99: number;
  readonly unit: string;
  readonly baseline: number | null;
  readonly baselineCommand: string | null;
  readonly ratio: number | null;
  readonly bar: number;
  readonly holds: boolean;
}

/** Throws RangeError without samples, or without the baseline the bar compares to. */
export function judge(bar: Bar, unit: string, measured: Measurement): Result {
  const { samples, baseline } = measured;
  const own = {
    n: measured.count ?? samples.length,
    median: round(median(samples)),
    p99: round(percentile(samples, 99)),
  };
  if (bar.kind === "absolute") {
    const holds = median(samples) <= bar.most && percentile(samples, 99) <= (bar.p99 ?? Number.POSITIVE_INFINITY);
    return { ...own, unit, baseline: null, baselineCommand: null, ratio: null, bar: bar.most, holds };
  }
  if (baseline === undefined) throw new RangeError("the figure's bar compares to a baseline, and there is none");
  const base = median(baseline.samples);
  const ratio = round(median(samples) / base);
  const most = round(bar.factor + bar.plus / base);
  return {
    ...own,
    unit,
    baseline: round(base),
    baselineCommand: baseline.command,
    ratio,
    bar: most,
    holds: ratio <= most,
  };
}

function round(value: number): number {
  return Math.round(value * 1000) / 1000;
}
