import { AGENT_PORT } from "#guest";
import type { BenchContext } from "../context.ts";
import { type Figure, MissingError } from "../figure.ts";
import { holdMemory } from "../memory-load.ts";
import { alternate, takenOnce } from "../sampling.ts";
import { median, spread } from "../statistics.ts";

const RESIDENT_MIB = 16;
/** Snapshots of one sandbox, one after another. */
const SERIES = 10;
const ROUTE = "/sandboxes/{sandboxID}/snapshots";

export const snapshot16: Figure = {
  name: "snapshot16_each",
  group: "snapshot16",
  title: `snapshot of a running sandbox, ${RESIDENT_MIB} MiB resident: to the API's answer`,
  unit: "ms",
  bar: { kind: "absolute", most: 100 },

  async run(context) {
    const { series, rawMs } = await taken(context);
    const all = series.flat();
    return {
      samples: all,
      notes: [
        `201 (API answer): ${spread(all)}`,
        `raw, runsc checkpoint --leave-running + fsync of its files: ${spread(rawMs)}`,
      ],
    };
  },
};

export const snapshot16Tenth: Figure = {
  name: "snapshot16_10th",
  group: "snapshot16",
  title: `the ${SERIES}th snapshot of a running sandbox, beside its first`,
  unit: "ms",
  bar: { kind: "baseline", factor: 1.2, plus: 0 },

  async run(context) {
    const { series } = await taken(context);
    const nth = (at: number): number[] => series.map((one) => one.at(at) ?? Number.NaN);
    return {
      samples: nth(-1),
      baseline: { samples: nth(0), command: "the first snapshot of the same sandbox" },
      notes: [
        `1st to ${SERIES}th, medians: ${Array.from({ length: SERIES }, (_, at) => median(nth(at)).toFixed(0)).join(", ")} ms`,
      ],
    };
  },
};

const taken = takenOnce(async (context: BenchContext): Promise<{ series: number[][]; rawMs: number[] }> => {
  if (!(await context.product.serves(ROUTE))) throw new MissingError("this server has no snapshots of sandboxes");
  const rounds = { ...context, samples: Math.ceil(context.samples / 3) };
  const { product, raw } = await alternate(rounds, {
    product: () => productSeries(context),
    raw: () => rawSample(context),
  });
  return { series: product, rawMs: raw };
});

async function productSeries({ product, quiet, sync }: BenchContext): Promise<number[]> {
  const sandbox = await product.create();
  const { id, accessToken } = sandbox;
  await holdMemory(product.server.url, RESIDENT_MIB, { ...product.edgeHeaders(id), "x-access-token": accessToken });
  await quiet();
  const times: number[] = [];
  const names: string[] = [];
  while (times.length < SERIES) {
    await sync();
    const startedAtMs = performance.now();
    names.push(await product.snapshot(sandbox));
    times.push(performance.now() - startedAtMs);
  }
  await product.kill(sandbox);
  for (const name of names) await product.deleteSnapshot(name);
  return times;
}

async function rawSample({ raw, quiet }: BenchContext): Promise<number> {
  const sandbox = await raw.prepare();
  try {
    await raw.stopwatch.time(sandbox.startSteps);
    await holdMemory(`http://${sandbox.slot.hostAddress}:${AGENT_PORT}`, RESIDENT_MIB, await sandbox.admit());
    const steps = [sandbox.captureStep(sandbox.checkpointDir), { fsync: sandbox.checkpointDir }];
    await quiet();
    return (await raw.stopwatch.time(steps)).reduce((sum, ms) => sum + ms, 0);
  } finally {
    await raw.remove(sandbox);
  }
}
