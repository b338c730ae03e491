import type { Figure } from "../figure.ts";
import type { Product } from "../product.ts";
import { hitRate, oneReady, type Ready, readReady } from "../ready.ts";
import { spread } from "../statistics.ts";

const SAMPLES = 300;

export const createHot: Figure = {
  name: "create_hot",
  title: "create from a ready clone to the agent's first answer through the edge, one at a time",
  unit: "ms",
  bar: { kind: "absolute", most: 15, p99: 60 },

  async run({ product, samples, say }) {
    const ready = await readReady(product);
    const count = ready === undefined ? samples : Math.max(SAMPLES, samples);
    const taken: Sample[] = [];
    while (taken.length < count) {
      taken.push(await sample(product, ready !== undefined));
      if (taken.length % 50 === 0) say(`${taken.length}/${count}`);
    }
    const hits = taken.filter(({ hit }) => hit);
    const misses = taken.filter(({ hit }) => !hit);
    // Where nothing was hit, what a client got all the same.
    const counted = hits.length === 0 ? misses : hits;
    return {
      samples: counted.map(({ answeredMs }) => answeredMs),
      notes: [
        ready === undefined ? "pool: this server has none" : "pool: at least one clone ready before each create",
        `${hitRate(hits.length, taken.length)}; counted: ${hits.length === 0 ? "all" : "hits only"}`,
        `201 (API answer): ${spread(counted.map(({ createdMs }) => createdMs))}`,
        `first answer of the agent through the edge: ${spread(counted.map(({ answeredMs }) => answeredMs))}`,
        ...(hits.length === 0 || misses.length === 0
          ? []
          : [`misses, to the agent's answer: ${spread(misses.map(({ answeredMs }) => answeredMs))}`]),
      ],
    };
  },
};

interface Sample {
  readonly hit: boolean;
  /** Since the request: its answer, and the agent's. */
  readonly createdMs: number;
  readonly answeredMs: number;
}

async function sample(product: Product, hasPool: boolean): Promise<Sample> {
  if (hasPool) await oneReady(product);
  const before = await readReady(product);
  const startedAtMs = performance.now();
  const sandbox = await product.create();
  const createdMs = performance.now() - startedAtMs;
  await product.agentAnswer(sandbox);
  const answeredMs = performance.now() - startedAtMs;
  const hit = hotStarts(await readReady(product)) > hotStarts(before);
  await product.kill(sandbox);
  return { hit, createdMs, answeredMs };
}

function hotStarts(ready: Ready | undefined): number {
  return ready?.hotStarts ?? 0;
}
