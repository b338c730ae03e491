import type { Bar, Figure, Result } from "./figure.ts";

export interface Reported {
  readonly figure: Figure;
  readonly result: Result;
  readonly notes: readonly string[];
}

const HEAD = ["figure", "n", "median", "p99", "baseline", "ratio", "bar", "holds"];

/** The table for people, and under it what was compared and seen. */
export function tableOf(reported: readonly Reported[]): string {
  const rows = [HEAD, ...reported.map(rowOf)];
  const widths = HEAD.map((_, column) => Math.max(...rows.map((row) => row[column]?.length ?? 0)));
  const lines = rows.map((row) =>
    row
      .map((cell, column) => cell.padEnd(widths[column] ?? 0))
      .join("  ")
      .trimEnd(),
  );
  return [...lines, "", ...reported.flatMap(detailsOf)].join("\n");
}

function rowOf({ figure, result }: Reported): string[] {
  return [
    figure.name,
    String(result.n),
    inUnit(result.median, result.unit),
    inUnit(result.p99, result.unit),
    result.baseline === null ? "-" : inUnit(result.baseline, result.unit),
    result.ratio === null ? "-" : `${result.ratio.toFixed(2)} x`,
    barText(figure.bar, result.unit),
    result.holds ? "yes" : "NO",
  ];
}

function detailsOf({ figure, result, notes }: Reported): string[] {
  const against = result.baselineCommand === null ? [] : [`  baseline: ${result.baselineCommand}`];
  return [`${figure.name}: ${figure.title}`, ...against, ...notes.map((note) => `  ${note}`)];
}

function barText(bar: Bar, unit: string): string {
  if (bar.kind === "absolute")
    return `<= ${inUnit(bar.most, unit)}${bar.p99 === undefined ? "" : `, p99 ${inUnit(bar.p99, unit)}`}`;
  return `<= ${bar.factor} x${bar.plus === 0 ? "" : ` + ${inUnit(bar.plus, unit)}`}`;
}

function inUnit(value: number, unit: string): string {
  return unit !== "ms" && Number.isInteger(value) ? `${value} ${unit}` : `${value.toFixed(1)} ${unit}`;
}
