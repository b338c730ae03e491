import { AGENT_PORT } from "#guest";
import type { BenchContext } from "../context.ts";
import type { Figure } from "../figure.ts";
import { GuestClient } from "../guest.ts";
import { alternate } from "../sampling.ts";
import { median, spread } from "../statistics.ts";

/** Holds the longest time between two of the clock's ticks inside; empty: it is to begin anew. */
const GAP_FILE = "/dev/shm/gap";

export const sourceStalls: readonly Figure[] = [16, 64, 256].map(stallOf);

function stallOf(residentMib: number): Figure {
  return {
    name: `source_stall_${residentMib}`,
    group: "source_stall",
    title: `how long a program in a sandbox of ${residentMib} MiB resident stands still while it is forked`,
    unit: "ms",
    bar: { kind: "baseline", factor: 1.15, plus: 0 },

    async run(context) {
      const { product, raw } = await alternate(context, {
        product: () => productSample(context, residentMib),
        raw: () => rawSample(context, residentMib),
      });
      return {
        samples: product.map(({ stallMs }) => stallMs),
        baseline: {
          samples: raw.map(({ stallMs }) => stallMs),
          command: "the same program during runsc checkpoint --leave-running --image-path=DIR ID (the driver's flags)",
        },
        notes: [
          `stall, seen from inside: ${spread(product.map(({ stallMs }) => stallMs))}`,
          `raw: ${spread(raw.map(({ stallMs }) => stallMs))}`,
          `the whole operation: fork of one to the API's answer ${middle(product.map(({ allMs }) => allMs))}, runsc ${middle(raw.map(({ allMs }) => allMs))} ms`,
        ],
      };
    },
  };
}

interface Sample {
  readonly stallMs: number;
  readonly allMs: number;
}

async function productSample({ product, quiet }: BenchContext, residentMib: number): Promise<Sample> {
  const sandbox = await product.create();
  const { id, accessToken } = sandbox;
  const guest = new GuestClient(product.server.url, { ...product.edgeHeaders(id), "x-access-token": accessToken });
  try {
    return await stallDuring(guest, residentMib, quiet, async () => {
      const startedAtMs = performance.now();
      const copies = await product.fork(sandbox, 1);
      const allMs = performance.now() - startedAtMs;
      for (const copy of copies) await product.kill(copy);
      return allMs;
    });
  } finally {
    guest.close();
    await product.kill(sandbox);
  }
}

async function rawSample({ raw, quiet }: BenchContext, residentMib: number): Promise<Sample> {
  const sandbox = await raw.prepare();
  try {
    await raw.stopwatch.time(sandbox.startSteps);
    const guest = new GuestClient(`http://${sandbox.slot.hostAddress}:${AGENT_PORT}`, await sandbox.admit());
    const capture = sandbox.captureStep(sandbox.checkpointDir);
    const sample = await stallDuring(guest, residentMib, quiet, async () => {
      const [ms = Number.NaN] = await raw.stopwatch.time([capture]);
      return ms;
    });
    guest.close();
    return sample;
  } finally {
    await raw.remove(sandbox);
  }
}

/** `work` returns how long it took, in ms. */
async function stallDuring(
  guest: GuestClient,
  residentMib: number,
  quiet: () => Promise<void>,
  work: () => Promise<number>,
): Promise<Sample> {
  await guest.spawn(ticking(residentMib));
  await quiet();
  await guest.run(`: > ${GAP_FILE}`);
  const allMs = await work();
  const stallMs = Number(await guest.run(`cat ${GAP_FILE}`));
  return { stallMs, allMs };
}

/** A process that holds that much memory, no two pages of which are alike, and looks at the clock all the time. */
function ticking(residentMib: number): string {
  return `exec python3 -u -c '
import os, time
held = bytearray(${residentMib} << 20)
for at in range(0, len(held), 1 << 20):
    held[at : at + (1 << 20)] = os.urandom(1 << 20)
file = os.open("${GAP_FILE}", os.O_RDWR | os.O_CREAT)
print("held")
most, last = 0, time.monotonic()
while True:
    time.sleep(0.0005)
    now = time.monotonic()
    if os.fstat(file).st_size == 0:
        most = 0
    if now - last > most:
        most = now - last
        os.pwrite(file, f"{most * 1000:12.3f}".encode(), 0)
    last = now
'`;
}

function middle(values: readonly number[]): string {
  return median(values).toFixed(1);
}
