import { availableParallelism } from "node:os";
import { atOnce } from "../at-once.ts";
import type { BenchContext } from "../context.ts";
import { type Figure, NOTHING_READY } from "../figure.ts";
import type { RawSandbox } from "../raw.ts";
import { alternate } from "../sampling.ts";
import { median, spread } from "../statistics.ts";

const COUNT = 50;
/** A round takes most of a minute, and is its own average. */
const ROUNDS = 3;
const PREPARED_AT_ONCE = 4;
const CORES = availableParallelism();
const WIDTHS = [CORES, CORES + 1, CORES * 2];

export const resume50: Figure = {
  name: "resume50",
  title: `${COUNT} paused sandboxes connected at the same time: to the last answer of the API`,
  unit: "ms",
  bar: { kind: "baseline", factor: 1.2, plus: 0 },
  settings: NOTHING_READY,

  async run(context) {
    const { product, raw } = await alternate(
      { ...context, samples: Math.min(ROUNDS, context.samples) },
      { product: () => productSample(context), raw: () => rawSample(context) },
    );
    const ofWidth = (width: number): number[] => raw.map((one) => one.get(width) ?? Number.NaN);
    const best = WIDTHS.toSorted((a, b) => median(ofWidth(a)) - median(ofWidth(b)))[0] ?? CORES;
    return {
      samples: product.map(({ wallMs }) => wallMs),
      baseline: {
        samples: ofWidth(best),
        command: `${COUNT} × runsc restore --bundle=B --image-path=TEMPLATE_STATE and GET SLOT:49983/health, ${best} at a time, the best of ${WIDTHS.join(", ")} (slots, cgroups and bundles made beforehand)`,
      },
      notes: [
        "nothing kept ready: each is restored from its checkpoint; 0 failures",
        `each connect, from the request to its answer: ${spread(product.flatMap(({ eachMs }) => eachMs))}`,
        ...WIDTHS.map((width) => `raw, ${width} at a time: ${median(ofWidth(width)).toFixed(0)} ms`),
      ],
    };
  },
};

/** Throws when one of them fails. */
async function productSample({
  product,
  quiet,
}: BenchContext): Promise<{ readonly wallMs: number; readonly eachMs: number[] }> {
  const sandboxes = await atOnce(PREPARED_AT_ONCE, Array.from({ length: COUNT }), () => product.create());
  await atOnce(PREPARED_AT_ONCE, sandboxes, (sandbox) => product.pause(sandbox));
  await quiet();
  const startedAtMs = performance.now();
  const eachMs = await atOnce(COUNT, sandboxes, async (sandbox) => {
    await product.connect(sandbox);
    return performance.now() - startedAtMs;
  });
  const wallMs = performance.now() - startedAtMs;
  await atOnce(PREPARED_AT_ONCE, sandboxes, (sandbox) => product.kill(sandbox));
  return { wallMs, eachMs };
}

/** Wall by width. */
async function rawSample({ raw, quiet }: BenchContext): Promise<ReadonlyMap<number, number>> {
  const walls = new Map<number, number>();
  for (const width of WIDTHS) {
    const made: RawSandbox[] = [];
    try {
      while (made.length < COUNT) made.push(await raw.prepare());
      await quiet();
      const [ms = Number.NaN] = await raw.stopwatch.time([
        { parallel: made.map((sandbox) => sandbox.startInOneSteps), width },
      ]);
      walls.set(width, ms);
    } finally {
      await atOnce(PREPARED_AT_ONCE, made, (sandbox) => raw.remove(sandbox));
    }
  }
  return walls;
}
