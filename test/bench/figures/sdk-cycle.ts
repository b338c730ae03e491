import { availableParallelism } from "node:os";
import { Sandbox } from "e2b";
import { atOnce } from "../at-once.ts";
import type { BenchContext } from "../context.ts";
import type { Figure } from "../figure.ts";
import { Instant } from "../instant.ts";
import { hitRate, oneReady, type Ready, readReady } from "../ready.ts";
import { alternate } from "../sampling.ts";
import { spread } from "../statistics.ts";
import { INSIDE, insideMs } from "./login-shell.ts";

const CYCLES_PER_SAMPLE = 5;
const LOOP_MS = 60_000;
const CORES = availableParallelism();
const CLIENTS = CORES * 2;
const RAW_RESTORES = 40;

export const sdkCycle: Figure = {
  name: "sdk_cycle_each",
  group: "sdk_cycle",
  title: "create, `echo`, kill through the JavaScript SDK, one at a time",
  unit: "ms",
  bar: { kind: "baseline", factor: 1, plus: 30 },

  async run(context) {
    const { product } = context;
    await using instant = await Instant.start();
    const inside = await Sandbox.create("base", { ...product.sdkOptions, timeoutMs: 1_200_000 });
    try {
      const before = await readReady(product);
      const { cycles, bySdk, shells } = await alternate(context, {
        cycles: () => cyclesOf(CYCLES_PER_SAMPLE, product.sdkOptions, () => oneReady(product)),
        bySdk: () => cyclesOf(CYCLES_PER_SAMPLE, instant.sdkOptions, async () => {}),
        shells: () => insideMs(inside),
      });
      return {
        samples: step(cycles, "allMs"),
        baseline: { samples: shells.flat(), command: INSIDE },
        notes: [
          `pool: the server's own, at least one clone ready before each create; ${hits(before, await readReady(product))}`,
          `whole cycle: ${spread(step(cycles, "allMs"))}`,
          `of it the SDK by itself, against a server that answers at once: ${spread(step(bySdk, "allMs"))}`,
          `create (API answer): ${spread(step(cycles, "createMs"))}`,
          `first exec: ${spread(step(cycles, "execMs"))}`,
          `kill: ${spread(step(cycles, "killMs"))}`,
        ],
      };
    } finally {
      await inside.kill();
    }
  },
};

export const sdkCycleRate: Figure = {
  name: "sdk_cycle_rate",
  group: "sdk_cycle",
  title: `create, \`echo\`, kill through the JavaScript SDK for ${LOOP_MS / 1000} s, ${CLIENTS} clients: time for each`,
  unit: "ms",
  // 0.8 times the rate.
  bar: { kind: "baseline", factor: 1.25, plus: 0 },

  async run(context) {
    const { product, quiet } = context;
    const rawMs = [await rawRestoreMs(context)];
    await quiet();
    const before = await readReady(product);
    const startedAtMs = performance.now();
    const untilMs = startedAtMs + LOOP_MS;
    const all = (await atOnce(CLIENTS, Array.from({ length: CLIENTS }), () => loop(context, untilMs))).flat();
    const eachMs = (performance.now() - startedAtMs) / all.length;
    const after = await readReady(product);
    await quiet();
    rawMs.push(await rawRestoreMs(context));
    return {
      samples: [eachMs],
      count: all.length,
      baseline: {
        samples: rawMs,
        command: `${RAW_RESTORES} × runsc restore --bundle=B --image-path=TEMPLATE_STATE and GET SLOT:49983/health, ${CORES} at a time (slots, cgroups and bundles made beforehand): wall for each, before and after`,
      },
      notes: [
        `pool: the server's own; ${hits(before, after)}`,
        `${(1000 / eachMs).toFixed(1)} cycles/s; raw restores/s before and after: ${rawMs.map((ms) => (1000 / ms).toFixed(1)).join(", ")}`,
        `whole cycle: ${spread(all.map(({ allMs }) => allMs))}`,
      ],
    };
  },
};

interface Cycle {
  readonly createMs: number;
  readonly execMs: number;
  readonly killMs: number;
  readonly allMs: number;
}

type SdkOptions = BenchContext["product"]["sdkOptions"];

/** `ready`: awaited before each. */
async function cyclesOf(count: number, sdk: SdkOptions, ready: () => Promise<void>): Promise<Cycle[]> {
  const cycles: Cycle[] = [];
  while (cycles.length < count) {
    await ready();
    cycles.push(await cycle(sdk));
  }
  return cycles;
}

async function loop({ product }: BenchContext, untilMs: number): Promise<Cycle[]> {
  const cycles: Cycle[] = [];
  while (performance.now() < untilMs) cycles.push(await cycle(product.sdkOptions));
  return cycles;
}

async function cycle(sdk: SdkOptions): Promise<Cycle> {
  const startedAtMs = performance.now();
  const sandbox = await Sandbox.create("base", { ...sdk, timeoutMs: 300_000 });
  const createdAtMs = performance.now();
  await sandbox.commands.run("echo hi");
  const saidAtMs = performance.now();
  await sandbox.kill();
  const killedAtMs = performance.now();
  return {
    createMs: createdAtMs - startedAtMs,
    execMs: saidAtMs - createdAtMs,
    killMs: killedAtMs - saidAtMs,
    allMs: killedAtMs - startedAtMs,
  };
}

async function rawRestoreMs({ raw, quiet }: BenchContext): Promise<number> {
  const made = await atOnce(1, Array.from({ length: RAW_RESTORES }), () => raw.prepare());
  try {
    await quiet();
    const parallel = made.map((sandbox) => sandbox.startInOneSteps);
    const [ms = Number.NaN] = await raw.stopwatch.time([{ parallel, width: CORES }]);
    return ms / RAW_RESTORES;
  } finally {
    await atOnce(CORES, made, (sandbox) => raw.remove(sandbox));
  }
}

function step(samples: readonly (readonly Cycle[])[], name: keyof Cycle): number[] {
  return samples.flat().map((cycle) => cycle[name]);
}

function hits(before: Ready | undefined, after: Ready | undefined): string {
  if (before === undefined || after === undefined) return "it has none";
  const hot = after.hotStarts - before.hotStarts;
  return hitRate(hot, hot + after.coldStarts - before.coldStarts);
}
