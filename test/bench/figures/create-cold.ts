import type { BenchContext } from "../context.ts";
import { type Figure, NOTHING_READY } from "../figure.ts";
import type { RawSandbox } from "../raw.ts";
import { alternate } from "../sampling.ts";
import { median, medians, spread } from "../statistics.ts";
import type { Step } from "../stopwatch.ts";

export const createCold: Figure = {
  name: "create_cold",
  title: "create from a template, nothing ready, to the agent's first answer through the edge",
  unit: "ms",
  bar: { kind: "baseline", factor: 1.15, plus: 0 },
  settings: NOTHING_READY,

  async run(context) {
    const { product, raw, rawInOne } = await alternate(context, {
      product: () => productSample(context),
      raw: () => rawSample(context),
      rawInOne: () => rawInOneSample(context),
    });
    const answered = product.map((sample) => sample.answered);
    const inOne = median(rawInOne);
    return {
      samples: answered,
      baseline: {
        samples: raw.map(({ create, restore, answer }) => create + restore + answer),
        command:
          "runsc create --bundle=B ID; runsc restore --detach --image-path=TEMPLATE_STATE ID; GET SLOT:49983/health (the driver's flags and config.json; slot, cgroup and bundle made beforehand)",
      },
      notes: [
        `201 (API answer): ${spread(product.map(({ created }) => created))}`,
        `first answer of the agent through the edge: ${spread(answered)}`,
        `product, ms since the request: ${steps(product)}`,
        `raw, ms of each: ${steps(raw)}`,
        `raw by one command, runsc restore --bundle=B, as the driver does it: ${inOne.toFixed(1)} ms, ratio ${(median(answered) / inOne).toFixed(2)}`,
      ],
    };
  },
};

interface ProductSample extends Record<string, number> {
  readonly created: number;
  readonly answered: number;
}

async function productSample({ product, quiet }: BenchContext): Promise<ProductSample> {
  await quiet();
  const startedAtMs = performance.now();
  const sandbox = await product.create();
  const created = performance.now() - startedAtMs;
  await product.agentAnswer(sandbox);
  const answered = performance.now() - startedAtMs;
  const inside = product.launchSteps(sandbox);
  await product.kill(sandbox);
  return { ...inside, created, answered };
}

interface RawSample extends Record<string, number> {
  readonly create: number;
  readonly restore: number;
  readonly answer: number;
}

async function rawSample(context: BenchContext): Promise<RawSample> {
  const [create = Number.NaN, restore = Number.NaN, answer = Number.NaN] = await timeRaw(
    context,
    (sandbox) => sandbox.startSteps,
  );
  return { create, restore, answer };
}

async function rawInOneSample(context: BenchContext): Promise<number> {
  return (await timeRaw(context, (sandbox) => sandbox.startInOneSteps)).reduce((sum, ms) => sum + ms, 0);
}

async function timeRaw({ raw, quiet }: BenchContext, stepsOf: (sandbox: RawSandbox) => Step[]): Promise<number[]> {
  const sandbox = await raw.prepare();
  try {
    await quiet();
    return await raw.stopwatch.time(stepsOf(sandbox));
  } finally {
    await raw.remove(sandbox);
  }
}

function steps(samples: readonly Record<string, number>[]): string {
  const parts = Object.entries(medians(samples)).map(([name, ms]) => `${name} ${ms.toFixed(1)}`);
  return parts.join(", ");
}
