import { mkdtempSync, rmSync } from "node:fs";
import { availableParallelism } from "node:os";
import { join } from "node:path";
import type { BenchContext } from "../context.ts";
import type { Figure } from "../figure.ts";
import type { RawSandbox } from "../raw.ts";
import { alternate } from "../sampling.ts";
import { median, spread } from "../statistics.ts";

const COPIES = 8;
const CORES = availableParallelism();
/** A file system in memory. */
const TMPFS = "/dev/shm";

export const fork8: Figure = {
  name: "fork8",
  title: `fork of an idle \`base\` into ${COPIES}: to the last one's first answer of its agent through the edge`,
  unit: "ms",
  bar: { kind: "baseline", factor: 1.2, plus: 0 },

  async run(context) {
    const { product, raw } = await alternate(context, {
      product: () => productSample(context),
      raw: () => rawSample(context),
    });
    return {
      samples: product.map(({ answeredMs }) => answeredMs),
      baseline: {
        samples: raw.map(({ captureMs, restoresMs }) => captureMs + restoresMs),
        command: `runsc checkpoint --leave-running --image-path=DIR ID, DIR on tmpfs; ${COPIES} × runsc restore --bundle=B --image-path=DIR and GET SLOT:49983/health, ${CORES} at a time (slots, cgroups and bundles made beforehand)`,
      },
      notes: [
        `201 (API answer): ${spread(product.map(({ forkedMs }) => forkedMs))}`,
        `all agents answer through the edge: ${spread(product.map(({ answeredMs }) => answeredMs))}`,
        `raw: checkpoint ${median(raw.map(({ captureMs }) => captureMs)).toFixed(1)}, restores ${median(raw.map(({ restoresMs }) => restoresMs)).toFixed(1)} ms`,
      ],
    };
  },
};

async function productSample({
  product,
  quiet,
}: BenchContext): Promise<{ readonly forkedMs: number; readonly answeredMs: number }> {
  const source = await product.create();
  await quiet();
  const startedAtMs = performance.now();
  const copies = await product.fork(source, COPIES);
  const forkedMs = performance.now() - startedAtMs;
  await Promise.all(copies.map((copy) => product.agentAnswer(copy)));
  const answeredMs = performance.now() - startedAtMs;
  for (const sandbox of [source, ...copies]) await product.kill(sandbox);
  return { forkedMs, answeredMs };
}

async function rawSample({
  raw,
  quiet,
}: BenchContext): Promise<{ readonly captureMs: number; readonly restoresMs: number }> {
  const dir = mkdtempSync(join(TMPFS, "aenv-bench-"));
  const made: RawSandbox[] = [];
  const prepare = async (imagePath?: string): Promise<RawSandbox> => {
    const sandbox = await raw.prepare(imagePath);
    made.push(sandbox);
    return sandbox;
  };
  try {
    const source = await prepare();
    await raw.stopwatch.time(source.startSteps);
    const state = join(dir, "state");
    const capture = source.captureStep(state);
    const restores: RawSandbox[] = [];
    while (restores.length < COPIES) restores.push(await prepare(state));
    await quiet();
    const parallel = restores.map((sandbox) => sandbox.startInOneSteps);
    const [captureMs = Number.NaN, restoresMs = Number.NaN] = await raw.stopwatch.time([
      capture,
      { parallel, width: CORES },
    ]);
    return { captureMs, restoresMs };
  } finally {
    for (const sandbox of made) await raw.remove(sandbox);
    rmSync(dir, { recursive: true });
  }
}
