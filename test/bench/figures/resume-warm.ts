import type { BenchContext } from "../context.ts";
import type { Figure } from "../figure.ts";
import type { Sandbox } from "../product.ts";
import { hitRate, readReady } from "../ready.ts";
import { spread } from "../statistics.ts";

export const resumeWarm: Figure = {
  name: "resume_warm",
  title: "connect to a paused idle `base` whose frozen machine is kept: to the API's answer",
  unit: "ms",
  bar: { kind: "absolute", most: 50 },

  async run(context) {
    const { product } = context;
    const sandbox = await product.create();
    try {
      const taken: Sample[] = [];
      while (taken.length < context.samples) taken.push(await sample(context, sandbox));
      const warm = taken.filter(({ hit }) => hit);
      const counted = warm.length === 0 ? taken : warm;
      return {
        samples: counted.map(({ connectedMs }) => connectedMs),
        notes: [
          `${hitRate(warm.length, taken.length)}; counted: ${warm.length === 0 ? "all" : "hits only"}`,
          `201 (API answer): ${spread(counted.map(({ connectedMs }) => connectedMs))}`,
          `first answer of the agent through the edge: ${spread(counted.map(({ answeredMs }) => answeredMs))}`,
        ],
      };
    } finally {
      await product.kill(sandbox);
    }
  },
};

interface Sample {
  readonly hit: boolean;
  /** Since the request: its answer, and the agent's. */
  readonly connectedMs: number;
  readonly answeredMs: number;
}

async function sample({ product, quiet }: BenchContext, sandbox: Sandbox): Promise<Sample> {
  await product.pause(sandbox);
  await quiet();
  const before = (await readReady(product))?.warmResumes ?? 0;
  const startedAtMs = performance.now();
  await product.connect(sandbox);
  const connectedMs = performance.now() - startedAtMs;
  await product.agentAnswer(sandbox);
  const answeredMs = performance.now() - startedAtMs;
  const hit = ((await readReady(product))?.warmResumes ?? 0) > before;
  return { hit, connectedMs, answeredMs };
}
