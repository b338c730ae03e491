/** Throws RangeError for an empty list. */
export function median(values: readonly number[]): number {
  const sorted = inOrder(values);
  const upper = sorted[Math.floor(sorted.length / 2)] ?? Number.NaN;
  const lower = sorted[Math.ceil(sorted.length / 2) - 1] ?? Number.NaN;
  return (lower + upper) / 2;
}

/** Nearest rank: the smallest value that at least `rank` percent do not exceed. Throws RangeError for an empty list. */
export function percentile(values: readonly number[], rank: number): number {
  const sorted = inOrder(values);
  return sorted[Math.max(0, Math.ceil((rank / 100) * sorted.length) - 1)] ?? Number.NaN;
}

/** Median of each named value over all samples. */
export function medians(samples: readonly Readonly<Record<string, number>>[]): Record<string, number> {
  const names = Object.keys(samples[0] ?? {});
  return Object.fromEntries(names.map((name) => [name, median(samples.map((sample) => sample[name] ?? Number.NaN))]));
}

/** All that is asked of latencies, in ms. */
export function spread(values: readonly number[]): string {
  const at = (rank: number): string => percentile(values, rank).toFixed(1);
  return `min ${at(0)}, p50 ${median(values).toFixed(1)}, p95 ${at(95)}, p99 ${at(99)}, max ${at(100)} ms`;
}

function inOrder(values: readonly number[]): number[] {
  if (values.length === 0) throw new RangeError("there are no samples");
  return [...values].sort((a, b) => a - b);
}
