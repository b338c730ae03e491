import { readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import { MIB } from "#domain";
import { AGENT_PORT } from "#guest";
import { NodePaths } from "#orchestrator";
import { stateDir } from "../../../src/orchestrator/checkpoints.ts";
import type { BenchContext } from "../context.ts";
import type { Bar, Figure } from "../figure.ts";
import { holdMemory } from "../memory-load.ts";
import { alternate } from "../sampling.ts";
import { median, spread } from "../statistics.ts";

export const pauses: readonly Figure[] = [64, 256].map((residentMib) => ({
  ...pauseOf(residentMib, { kind: "baseline", factor: 1.15, plus: 0 }),
  name: `pause_${residentMib}`,
  group: "pause",
}));

export const pauseIdle: Figure = { ...pauseOf(0, { kind: "absolute", most: 100 }), name: "pause_idle" };

function pauseOf(residentMib: number, bar: Bar): Omit<Figure, "name"> {
  return {
    title: `pause of \`base\`, ${residentMib === 0 ? "idle" : `${residentMib} MiB resident`}: to the API's answer`,
    unit: "ms",
    bar,

    async run(context) {
      const { product, raw } = await alternate(context, {
        product: () => productSample(context, residentMib),
        raw: () => rawSample(context, residentMib),
      });
      const rawMs = raw.map(({ checkpointMs, fsyncMs }) => checkpointMs + fsyncMs);
      return {
        samples: product.map(({ ms }) => ms),
        baseline: {
          samples: rawMs,
          command:
            "runsc checkpoint --image-path=DIR ID (the driver's flags but --leave-running; the same process inside); fsync of each file in DIR and of DIR",
        },
        notes: [
          `204 (API answer): ${spread(product.map(({ ms }) => ms))}`,
          `raw: ${spread(rawMs)}; checkpoint ${middle(raw.map((one) => one.checkpointMs))}, fsync ${middle(raw.map((one) => one.fsyncMs))}`,
          `state written, MiB: product ${middle(product.map((one) => one.mib))}, raw ${middle(raw.map((one) => one.mib))}`,
        ],
      };
    },
  };
}

async function productSample(
  { product, quiet }: BenchContext,
  residentMib: number,
): Promise<{ ms: number; mib: number }> {
  const sandbox = await product.create();
  const { id, accessToken } = sandbox;
  await holdMemory(product.server.url, residentMib, { ...product.edgeHeaders(id), "x-access-token": accessToken });
  await quiet();
  const startedAtMs = performance.now();
  await product.pause(sandbox);
  const ms = performance.now() - startedAtMs;
  const dir = new NodePaths(product.server.dataDir).checkpoint(`${id}-0001`);
  const mib = sizeMib(stateDir(dir), residentMib);
  await product.kill(sandbox);
  return { ms, mib };
}

async function rawSample(
  { raw, quiet }: BenchContext,
  residentMib: number,
): Promise<{ checkpointMs: number; fsyncMs: number; mib: number }> {
  const sandbox = await raw.prepare();
  try {
    await raw.stopwatch.time(sandbox.startSteps);
    await holdMemory(`http://${sandbox.slot.hostAddress}:${AGENT_PORT}`, residentMib, await sandbox.admit());
    const steps = sandbox.checkpointSteps();
    await quiet();
    const [checkpointMs = Number.NaN, fsyncMs = Number.NaN] = await raw.stopwatch.time(steps);
    return { checkpointMs, fsyncMs, mib: sizeMib(sandbox.checkpointDir, residentMib) };
  } finally {
    await raw.remove(sandbox);
  }
}

/** Throws when the memory that was to be held is not in it. */
function sizeMib(dir: string, residentMib: number): number {
  const bytes = readdirSync(dir).reduce((sum, name) => sum + statSync(join(dir, name)).size, 0);
  if (bytes < residentMib * MIB) throw new Error(`the state in ${dir} has ${bytes} bytes: too few`);
  return bytes / MIB;
}

function middle(values: readonly number[]): string {
  return median(values).toFixed(1);
}
