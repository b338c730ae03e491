import { setTimeout as sleep } from "node:timers/promises";
import { MIB } from "#domain";
import { FirecrackerBench } from "./bench.ts";
import { firecrackerFigures } from "./figures.ts";
import { whyNotTested } from "./probe.ts";
import { fastToyGuest } from "./toy.ts";

/** The figures with toy guests that have written 16 MiB anew, on this machine's own /dev/kvm. */
if ((await whyNotTested()) !== undefined) process.exit();
await using bench = await FirecrackerBench.open(fastToyGuest);
const text = await firecrackerFigures({
  bench,
  resources: { vcpus: 1, memoryBytes: 256 * MIB, diskBytes: 512 * MIB, pidsMax: 1024 },
  rounds: 24,
  warmUp: 20,
  ready: () => sleep(500),
  dirty: () => sleep(500),
});
process.stdout.write(`${text}\n`);
