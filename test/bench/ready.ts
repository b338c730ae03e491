import { setTimeout as sleep } from "node:timers/promises";
import { until } from "../e2e/start.ts";
import type { Product } from "./product.ts";

const READY_DEADLINE_MS = 30_000;
/** After a clone is ready: what was still done in making it is over. */
const SETTLE_MS = 50;

/** What stands ready on the server, and how often that was of use so far. */
export interface Ready {
  readonly clones: number;
  readonly copies: number;
  readonly hotStarts: number;
  readonly coldStarts: number;
  readonly warmResumes: number;
  readonly coldResumes: number;
}

/** As the server counts it; undefined when nothing ever stands ready there. */
export async function readReady(product: Product): Promise<Ready | undefined> {
  const text = await product.metrics();
  const value = (name: string): number => {
    const line = text.split("\n").find((one) => one.startsWith(`${name} `));
    return Number(line?.slice(name.length + 1) ?? Number.NaN);
  };
  const ready = {
    clones: value('aenv_ready_machines{kind="clone"}'),
    copies: value('aenv_ready_machines{kind="copy"}'),
    hotStarts: value('aenv_starts_total{from="clone"}'),
    coldStarts: value('aenv_starts_total{from="snapshot"}'),
    warmResumes: value('aenv_resumes_total{from="copy"}'),
    coldResumes: value('aenv_resumes_total{from="checkpoint"}'),
  };
  return Object.values(ready).some(Number.isNaN) ? undefined : ready;
}

/** Waits until a start can be from a clone. */
export async function oneReady(product: Product): Promise<void> {
  await until("a ready clone", async () => ((await readReady(product))?.clones ?? 0) > 0, READY_DEADLINE_MS);
  await sleep(SETTLE_MS);
}

/** How many of so many found what they wanted ready. */
export function hitRate(hits: number, all: number): string {
  return `hit rate ${((100 * hits) / all).toFixed(1)} % (${hits} of ${all})`;
}
