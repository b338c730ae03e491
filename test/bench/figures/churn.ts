import { Sandbox } from "e2b";
import { until } from "../../e2e/start.ts";
import { type Census, differences } from "../census.ts";
import type { BenchContext } from "../context.ts";
import { type Figure, NOTHING_READY } from "../figure.ts";

const CYCLES = 200;
const AT_ONCE = 8;
const SETTLE_DEADLINE_MS = 60_000;

export const churn: Figure = {
  name: "churn",
  title: `what ${CYCLES} cycles of create, exec, kill leave, ${AT_ONCE} at a time`,
  unit: "leftovers",
  bar: { kind: "absolute", most: 0 },
  // What stands ready comes and goes with demand.
  settings: NOTHING_READY,

  async run(context) {
    const { census, product, quiet } = context;
    await quiet();
    const before = census();
    const startedAtMs = performance.now();
    await cycles(context);
    const perS = CYCLES / ((performance.now() - startedAtMs) / 1000);
    const left = await settled(before, census);
    const sandboxes = await product.count();
    return {
      samples: [Object.values(left).reduce((sum, count) => sum + Math.abs(count), sandboxes)],
      count: CYCLES,
      notes: [
        `${perS.toFixed(1)} cycles/s`,
        `counted before: ${JSON.stringify(before)}`,
        `more or fewer afterwards: ${JSON.stringify({ ...left, ...(sandboxes > 0 && { sandboxes }) })}`,
      ],
    };
  },
};

async function cycles({ say, product }: BenchContext): Promise<void> {
  let begun = 0;
  let done = 0;
  const worker = async (): Promise<void> => {
    while (begun < CYCLES) {
      begun += 1;
      const sandbox = await Sandbox.create("base", { ...product.sdkOptions, timeoutMs: 300_000 });
      await sandbox.commands.run("true");
      await sandbox.kill();
      done += 1;
      if (done % 20 === 0) say(`${done}/${CYCLES}`);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
}

/** What is still different once everything should be over; empty when nothing is. */
async function settled(before: Census, census: () => Census): Promise<Record<string, number>> {
  const left = (): Record<string, number> => differences(before, census());
  await until("the state before", () => Object.keys(left()).length === 0, SETTLE_DEADLINE_MS).catch(() => {});
  return left();
}
