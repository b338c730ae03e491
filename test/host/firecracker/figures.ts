import { rm } from "node:fs/promises";
import { join } from "node:path";
import type { Resources } from "#domain";
import { type Bar, judge, type Measurement } from "../../bench/figure.ts";
import { type Reported, tableOf } from "../../bench/report.ts";
import type { FirecrackerBench } from "./bench.ts";
import { RawMachine } from "./raw-machine.ts";

/** What the driver's promises are measured with. */
export interface FirecrackerFigures {
  readonly bench: FirecrackerBench;
  readonly resources: Resources;
  readonly rounds: number;
  /** Rounds before them that do not count: a server has been running for long. */
  readonly warmUp: number;
  /** Waits until the guest at this address has started, and can be told. */
  readonly ready: (agentAddress: string | undefined) => Promise<void>;
  /** Lets the guest at this address write to its memory; the same to both. */
  readonly dirty: (agentAddress: string | undefined) => Promise<void>;
}

/**
 * The Firecracker driver's promises, as ratios to bare calls of Firecracker's API that are taken in turns with it, and how many
 * calls each takes, as text. `npm run bench -- firecracker` prints it.
 */
export async function firecrackerFigures(on: FirecrackerFigures): Promise<string> {
  const { bench } = on;
  const template = await makeTemplate(on);
  const boot = `${bench.apiCalls().at(-1)} calls of Firecracker's API`;
  const pause = await measurePause(on, template);
  const restore = await measureRestore(on, template);
  const table = tableOf([
    reported("firecracker_pause", "freeze, capture and sync a VM that runs", 1.2, pause),
    reported("firecracker_restore", "restore a VM in a slot that waits", 1.3, restore),
  ]);
  return `${table}\n\nboot: ${boot}`;
}

function reported(name: string, title: string, factor: number, measured: Measurement): Reported {
  const bar: Bar = { kind: "baseline", factor, plus: 0 };
  const figure = { name, title, unit: "ms", bar, run: () => Promise.resolve(measured) } as const;
  return { figure, result: judge(bar, "ms", measured), notes: measured.notes };
}

async function makeTemplate({ bench, resources, ready }: FirecrackerFigures): Promise<string> {
  const dir = join(bench.host.dir, "template");
  const spec = await bench.spec(resources);
  const machine = await bench.driver.boot(spec);
  await ready(bench.agentAddress(spec));
  await machine.checkpoint(dir, { keepRunning: false });
  return dir;
}

async function measurePause(on: FirecrackerFigures, template: string): Promise<Measurement> {
  const { bench, resources } = on;
  const spec = await bench.spec(resources);
  const machine = await bench.driver.restore(spec, template);
  const agent = bench.agentAddress(spec);
  const raw = await RawMachine.restore(bench, template, resources);
  await on.ready(agent);
  await on.ready(raw.agentAddress);
  const dir = join(bench.host.dir, "paused");
  const fileCalls: number[] = [];
  // Each rests while the other is measured: a guest that runs has a processor to itself.
  await machine.pause();
  await raw.pause();
  const own = async (): Promise<number> => {
    await machine.resume();
    await on.dirty(agent);
    const before = bench.fileCalls();
    const tookMs = await timed(async () => {
      await machine.pause();
      await machine.checkpoint(dir, { keepRunning: true });
      await bench.blobd.store.sync([dir]);
    });
    fileCalls.push(bench.fileCalls() - before);
    await rm(dir, { recursive: true });
    return tookMs;
  };
  const bare = async (): Promise<number> => {
    raw.emptyFiles();
    await raw.resume();
    await on.dirty(raw.agentAddress);
    return await timed(() => raw.pauseAndSnapshot());
  };
  const taken = await inTurns(on, own, bare);
  await machine.stop();
  await raw.stop();
  const [fewest, most] = [Math.min(...fileCalls), Math.max(...fileCalls)];
  return {
    samples: taken.own,
    baseline: {
      samples: taken.bare,
      command: "PATCH /vm Paused, PUT /snapshot/create Diff (which syncs the memory), fsync of state and memory",
    },
    notes: [
      `calls of Firecracker's API: 2, as the baseline; of blobd: ${fewest} (${most} when layers are merged) and the one that syncs`,
    ],
  };
}

async function measureRestore(on: FirecrackerFigures, template: string): Promise<Measurement> {
  const { bench, resources } = on;
  let fileCalls = 0;
  const own = async (): Promise<number> => {
    const spec = await bench.spec(resources);
    await bench.driver.prepare(spec.network);
    const before = bench.fileCalls();
    const startedAtMs = performance.now();
    const machine = await bench.driver.restore(spec, template);
    const tookMs = performance.now() - startedAtMs;
    fileCalls = bench.fileCalls() - before;
    await machine.stop();
    return tookMs;
  };
  const bare = async (): Promise<number> => {
    const raw = await RawMachine.prepare(bench, template, resources);
    const tookMs = await timed(() => raw.load());
    await raw.stop();
    return tookMs;
  };
  const taken = await inTurns(on, own, bare);
  return {
    samples: taken.own,
    baseline: { samples: taken.bare, command: "PUT /snapshot/load of a waiting process, its files in place" },
    notes: [`calls of Firecracker's API: ${bench.apiCalls().at(-1)}, as the baseline; of blobd: ${fileCalls}`],
  };
}

/** One of each, now this one first and now that. */
async function inTurns(
  { rounds, warmUp }: FirecrackerFigures,
  own: () => Promise<number>,
  bare: () => Promise<number>,
): Promise<{ readonly own: number[]; readonly bare: number[] }> {
  const taken = { own: [] as number[], bare: [] as number[] };
  for (let round = 0; round < warmUp + rounds; round += 1) {
    const both: [number[], () => Promise<number>][] = [
      [taken.own, own],
      [taken.bare, bare],
    ];
    for (const [into, measure] of round % 2 === 0 ? both : both.reverse()) into.push(await measure());
  }
  return { own: taken.own.slice(warmUp), bare: taken.bare.slice(warmUp) };
}

async function timed(work: () => Promise<void>): Promise<number> {
  const startedAtMs = performance.now();
  await work();
  return performance.now() - startedAtMs;
}
