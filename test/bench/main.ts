import { writeFile } from "node:fs/promises";
import { parseArgs } from "node:util";
import { Benches } from "./benches.ts";
import { type Figure, judge, MissingError } from "./figure.ts";
import { churn } from "./figures/churn.ts";
import { createCold } from "./figures/create-cold.ts";
import { createHot } from "./figures/create-hot.ts";
import { proxySmall } from "./figures/edge-small.ts";
import { transferDown, transferUp } from "./figures/edge-transfer.ts";
import { websockets } from "./figures/edge-websockets.ts";
import { exec } from "./figures/exec.ts";
import { fork8 } from "./figures/fork8.ts";
import { loginShell } from "./figures/login-shell.ts";
import { overcommitCpu, overcommitMemory, overcommitWake } from "./figures/overcommit.ts";
import { pauseIdle, pauses } from "./figures/pause.ts";
import { resumeWarm } from "./figures/resume-warm.ts";
import { resume50 } from "./figures/resume50.ts";
import { sdkCycle, sdkCycleRate } from "./figures/sdk-cycle.ts";
import { snapshot16, snapshot16Tenth } from "./figures/snapshot16.ts";
import { sourceStalls } from "./figures/source-stall.ts";
import { stdoutBackpressure } from "./figures/stdout-backpressure.ts";
import { type Reported, tableOf } from "./report.ts";

const FIGURES: readonly Figure[] = [
  createHot,
  createCold,
  resumeWarm,
  pauseIdle,
  ...pauses,
  snapshot16,
  snapshot16Tenth,
  fork8,
  resume50,
  ...sourceStalls,
  sdkCycle,
  sdkCycleRate,
  overcommitMemory,
  overcommitCpu,
  overcommitWake,
  exec,
  loginShell,
  stdoutBackpressure,
  transferDown,
  transferUp,
  proxySmall,
  websockets,
  churn,
];
const DEFAULT_SAMPLES = 21;
const MIN_SAMPLES = 15;

const USAGE = `npm run bench [-- --only NAME,… --json FILE --n N]: measures what docs/promises.md promises.

${FIGURES.map(({ name, title }) => `  ${name.padEnd(19)} ${title}`).join("\n")}

  --only NAME,…  only these; a name without its size takes all sizes
  --json FILE    writes {NAME: {n, median, p99, unit, baseline, baselineCommand, ratio, bar, holds}}
  --n N          samples of each side (default ${DEFAULT_SAMPLES}; churn always counts its cycles)

\`npm run bench -- firecracker\` measures the Firecracker driver against bare calls of its API, in an emulated machine.

Ends with 1 when a bar does not hold.`;

const { values } = parseArgs({
  options: {
    only: { type: "string", multiple: true },
    json: { type: "string" },
    n: { type: "string", default: String(DEFAULT_SAMPLES) },
    help: { type: "boolean", default: false },
  },
});
if (values.help) process.stdout.write(`${USAGE}\n`);
else process.exitCode = await main(chosen(values.only), samplesOf(values.n), values.json);

function chosen(only: readonly string[] | undefined): readonly Figure[] {
  if (only === undefined) return FIGURES;
  const names = only.flatMap((text) => text.split(","));
  const unknown = names.filter((name) => !FIGURES.some((figure) => namesOf(figure).includes(name)));
  if (unknown.length > 0) throw new Error(`--only ${unknown.join(",")}: no such figure\n\n${USAGE}`);
  return FIGURES.filter((figure) => namesOf(figure).some((name) => names.includes(name)));
}

function namesOf({ name, group }: Figure): string[] {
  return group === undefined ? [name] : [name, group];
}

function samplesOf(text: string): number {
  const samples = Number(text);
  if (!Number.isInteger(samples) || samples < MIN_SAMPLES) {
    throw new Error(`--n ${text}: has to be a number from ${MIN_SAMPLES} on; fewer say nothing about a bar`);
  }
  return samples;
}

async function main(figures: readonly Figure[], samples: number, jsonFile: string | undefined): Promise<number> {
  const benches = new Benches(say);
  const close = once(() => benches.close());
  const reported: Reported[] = [];
  let interrupted = false;
  for (const signal of ["SIGINT", "SIGTERM"] as const) {
    process.once(signal, () => {
      interrupted = true;
      if (reported.length > 0) process.stdout.write(`${tableOf(reported)}\n`);
      say("interrupted: removing everything…");
      void close().finally(() => process.exit(130));
    });
  }
  const failed: string[] = [];
  try {
    for (const figure of figures) {
      try {
        reported.push(await measure(benches, figure, samples));
      } catch (error) {
        if (interrupted) break;
        if (error instanceof MissingError) {
          say(`!!! ${figure.name}: not measured: ${error.message}`);
          continue;
        }
        failed.push(figure.name);
        say(`${figure.name} could not be measured: ${error instanceof Error ? error.stack : error}`);
      }
    }
  } finally {
    await close();
  }
  if (jsonFile !== undefined) {
    const json = Object.fromEntries(reported.map(({ figure, result }) => [figure.name, result]));
    await writeFile(jsonFile, `${JSON.stringify(json, undefined, 2)}\n`);
  }
  process.stdout.write(`${tableOf(reported)}\n`);
  const missed = reported.filter(({ result }) => !result.holds).map(({ figure }) => figure.name);
  if (missed.length > 0) say(`bars that do not hold: ${missed.join(", ")}`);
  if (failed.length > 0) say(`not measured: ${failed.join(", ")}`);
  return missed.length + failed.length === 0 ? 0 : 1;
}

async function measure(benches: Benches, figure: Figure, samples: number): Promise<Reported> {
  const bench = await benches.of(figure.settings ?? {});
  say(`${figure.name}: ${figure.title}`);
  const measured = await figure.run(bench.context(samples, (line) => say(`  ${figure.name} ${line}`)));
  return { figure, result: judge(figure.bar, figure.unit, measured), notes: measured.notes };
}

function once(work: () => Promise<void>): () => Promise<void> {
  let done: Promise<void> | undefined;
  return () => {
    done ??= work();
    return done;
  };
}

function say(line: string): void {
  process.stderr.write(`${line}\n`);
}
