import { readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import { MIB } from "#domain";
import { AGENT_PORT } from "#guest";
import { NodePaths } from "#orchestrator";
import { stateDir } from "../../../src/orchestrator/checkpoints.ts";
import type { BenchContext } from "../context.ts";
import type { Figure } from "../figure.ts";
import { GuestClient } from "../guest.ts";
import { alternate } from "../sampling.ts";
import { median } from "../statistics.ts";

const RESIDENT_MIB = 64;

/** A process that holds that much memory no two pages of which are alike. Speaks once it does. */
const HOLD_MEMORY = `exec python3 -u -c '
import os, time
held = bytearray(${RESIDENT_MIB} << 20)
for at in range(0, len(held), 1 << 20):
    held[at : at + (1 << 20)] = os.urandom(1 << 20)
print("held")
time.sleep(3600)
'`;

export const pause: Figure = {
  name: "pause",
  title: `pause through the API, ${RESIDENT_MIB} MiB resident`,
  unit: "ms",
  bar: { kind: "baseline", factor: 1.3, plus: 0 },

  async run(context) {
    const { product, raw } = await alternate(context, {
      product: () => productSample(context),
      raw: () => rawSample(context),
    });
    return {
      samples: product.map(({ ms }) => ms),
      baseline: {
        samples: raw.map(({ checkpointMs, fsyncMs }) => checkpointMs + fsyncMs),
        command:
          "runsc checkpoint --image-path=DIR ID (the driver's flags but --leave-running; the same process inside); fsync of each file in DIR and of DIR",
      },
      notes: [
        `raw, ms: checkpoint ${middle(raw.map((one) => one.checkpointMs))}, fsync ${middle(raw.map((one) => one.fsyncMs))}`,
        `state, MiB: product ${middle(product.map((one) => one.mib))}, raw ${middle(raw.map((one) => one.mib))}`,
      ],
    };
  },
};

async function productSample({ product, quiet }: BenchContext): Promise<{ ms: number; mib: number }> {
  const sandbox = await product.create();
  const { id, accessToken } = sandbox;
  await holdMemory(product.server.url, { ...product.edgeHeaders(id), "x-access-token": accessToken });
  await quiet();
  const startedAtMs = performance.now();
  await product.pause(sandbox);
  const ms = performance.now() - startedAtMs;
  const dir = new NodePaths(product.server.dataDir).checkpoint(`${id}-0001`);
  const mib = sizeMib(stateDir(dir));
  await product.kill(sandbox);
  return { ms, mib };
}

async function rawSample({
  raw,
  quiet,
}: BenchContext): Promise<{ checkpointMs: number; fsyncMs: number; mib: number }> {
  const sandbox = await raw.prepare();
  try {
    await raw.stopwatch.time(sandbox.startSteps);
    await holdMemory(`http://${sandbox.slot.hostAddress}:${AGENT_PORT}`);
    const steps = await sandbox.checkpointSteps();
    await quiet();
    const [checkpointMs = Number.NaN, fsyncMs = Number.NaN] = await raw.stopwatch.time(steps);
    return { checkpointMs, fsyncMs, mib: sizeMib(sandbox.checkpointDir) };
  } finally {
    await raw.remove(sandbox);
  }
}

async function holdMemory(agentUrl: string, headers: Record<string, string> = {}): Promise<void> {
  const guest = new GuestClient(agentUrl, headers);
  await guest.spawn(HOLD_MEMORY);
  guest.close();
}

/** Throws when the memory that was to be held is not in it. */
function sizeMib(dir: string): number {
  const bytes = readdirSync(dir).reduce((sum, name) => sum + statSync(join(dir, name)).size, 0);
  if (bytes < RESIDENT_MIB * MIB) throw new Error(`the state in ${dir} has ${bytes} bytes: too few`);
  return bytes / MIB;
}

function middle(values: readonly number[]): string {
  return median(values).toFixed(1);
}
