import { join } from "node:path";
import { MIB, type Resources } from "#domain";
import { TestAgent } from "../../src/driver/testing/agent.ts";
import { type Figure, judge, type Measurement } from "../bench/figure.ts";
import { tableOf } from "../bench/report.ts";
import type { FirecrackerBench } from "../host/firecracker/bench.ts";
import { openLinuxBench } from "./linux-bench.ts";
import { RawMachine } from "./raw-machine.ts";

/**
 * The Firecracker driver's promises, as ratios to bare calls of Firecracker's API taken in turns with it, in whatever machine
 * this runs. `npm run bench -- firecracker` runs it in the nested machine.
 */
const ROUNDS = 7;
const DIRTY = "head -c 4M /dev/urandom > /dev/shm/dirty";
const RESOURCES: Resources = { vcpus: 1, memoryBytes: 256 * MIB, diskBytes: 512 * MIB, pidsMax: 1024 };

await using bench = await openLinuxBench();
const template = join(bench.host.dir, "template");
await makeTemplate();
const figures: Figure[] = [
  {
    name: "firecracker_pause",
    title: "freeze, capture and sync a VM that runs",
    unit: "ms",
    bar: { kind: "baseline", factor: 1.2, plus: 0 },
    run: measurePause,
  },
  {
    name: "firecracker_restore",
    title: "restore a VM in a slot that waits",
    unit: "ms",
    bar: { kind: "baseline", factor: 1.3, plus: 0 },
    run: measureRestore,
  },
];
const reported = [];
for (const figure of figures) {
  const measured = await figure.run(undefined as never);
  reported.push({ figure, result: judge(figure.bar, figure.unit, measured), notes: measured.notes });
}
process.stdout.write(`${tableOf(reported)}\n`);
const [boot, restore] = [bench.apiCalls()[0], bench.apiCalls().at(-1)];
process.stdout.write(`calls of Firecracker's API: ${boot} for a boot, ${restore} for a restore\n`);

async function makeTemplate(): Promise<void> {
  const spec = await bench.spec(RESOURCES);
  const machine = await bench.driver.boot(spec);
  await agentOf(bench, spec).ready();
  await machine.checkpoint(template, { keepRunning: false });
}

async function measurePause(): Promise<Measurement> {
  const spec = await bench.spec(RESOURCES);
  const machine = await bench.driver.restore(spec, template);
  const agent = agentOf(bench, spec);
  await agent.ready();
  const raw = await RawMachine.restore(bench, template, RESOURCES);
  const rawAgent = new TestAgent(raw.agentAddress);
  await rawAgent.ready();
  const [samples, baseline]: [number[], number[]] = [[], []];
  // The first of each also writes what the restore has touched.
  for (let round = 0; round <= ROUNDS; round += 1) {
    const dir = join(bench.host.dir, `pause-${round}`);
    await agent.run(DIRTY);
    const own = await timed(async () => {
      await machine.pause();
      await machine.checkpoint(dir, { keepRunning: true });
      await bench.blobd.store.sync([dir]);
    });
    await machine.resume();
    await rawAgent.run(DIRTY);
    const bare = await timed(() => raw.pauseAndSnapshot());
    await raw.resume();
    if (round === 0) continue;
    samples.push(own);
    baseline.push(bare);
  }
  agent.close();
  rawAgent.close();
  await machine.stop();
  await raw.stop();
  const command = "PATCH /vm Paused, PUT /snapshot/create Diff (which syncs the memory), fsync of the state";
  return { samples, baseline: { samples: baseline, command }, notes: [] };
}

async function measureRestore(): Promise<Measurement> {
  const [samples, baseline]: [number[], number[]] = [[], []];
  for (let round = 0; round <= ROUNDS; round += 1) {
    const spec = await bench.spec(RESOURCES);
    await bench.driver.prepare(spec.network);
    let own = 0;
    let machine: Awaited<ReturnType<typeof bench.driver.restore>> | undefined;
    own = await timed(async () => {
      machine = await bench.driver.restore(spec, template);
    });
    await machine?.stop();
    const raw = await RawMachine.prepare(bench, template, RESOURCES);
    const bare = await timed(() => raw.load());
    await raw.stop();
    if (round === 0) continue;
    samples.push(own);
    baseline.push(bare);
  }
  return { samples, baseline: { samples: baseline, command: "PUT /snapshot/load of a waiting process" }, notes: [] };
}

function agentOf(on: FirecrackerBench, spec: Parameters<FirecrackerBench["agentAddress"]>[0]): TestAgent {
  return new TestAgent(on.agentAddress(spec) ?? "");
}

async function timed(work: () => Promise<void>): Promise<number> {
  const startedAtMs = performance.now();
  await work();
  return performance.now() - startedAtMs;
}
