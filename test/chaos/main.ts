import { parseArgs } from "node:util";
import { FAULT_POINTS } from "#lib/fault";
import { COVER, type Plan, planOf } from "./plan.ts";
import { isClean, runChaos, summary, table } from "./run.ts";
import { World } from "./world.ts";

const DEFAULT_KILLS = 100;

const USAGE = `npm run chaos [-- --kills N --seed S --from ROUND --points NAME,…]

Starts a server of its own, and kills its processes in the middle of what it is asked to do, until N were killed (default
${DEFAULT_KILLS}). After each: no sandbox lost or doubled, no wrong byte, nothing left over. The first ${COVER.length} rounds pass each point
once; the others are made from the seed. Ends with 1 at the first harm, and says how to repeat that round.

  --kills N      processes to kill
  --seed S       a number; the same seed does the same (default: made, and printed)
  --from ROUND   begin with this round
  --points …     only faults at these points:
${FAULT_POINTS.join(" ").replace(/(.{1,100})( |$)/g, "                 $1\n")}`;

const { values } = parseArgs({
  options: {
    kills: { type: "string", default: String(DEFAULT_KILLS) },
    seed: { type: "string", default: String(Date.now() % 1_000_000) },
    from: { type: "string", default: "0" },
    points: { type: "string", multiple: true },
    help: { type: "boolean", default: false },
  },
});
if (values.help) process.stdout.write(USAGE);
else process.exitCode = await main();

async function main(): Promise<number> {
  let stopped = false;
  for (const signal of ["SIGINT", "SIGTERM"] as const) {
    process.on(signal, () => {
      stopped = true;
      say("stopping after this round…");
    });
  }
  const seed = numberOf("seed", values.seed, 0);
  const points = values.points === undefined ? undefined : pointsOf(values.points);
  const options = {
    seed,
    kills: numberOf("kills", values.kills, 1),
    plans: plans(seed, numberOf("from", values.from, 0), points),
    isStopped: () => stopped,
    say,
  };
  say(`seed ${seed}; starting a server…`);
  await using world = await World.open();
  const result = await runChaos(world, options);
  process.stdout.write(`${table(result)}\n${summary(result)}\n`);
  return isClean(result) ? 0 : 1;
}

/** Without end. */
function* plans(seed: number, from: number, points: readonly string[] | undefined): Generator<[number, Plan]> {
  for (let round = from; ; round += 1) {
    const plan = COVER[round] ?? planOf(seed, round);
    if (points?.includes(plan.orders[0]?.point ?? "") ?? true) yield [round, plan];
  }
}

function numberOf(name: string, text: string, least: number): number {
  const value = Number(text);
  if (!Number.isSafeInteger(value) || value < least) throw new Error(`--${name} ${text}: a number from ${least} on`);
  return value;
}

function pointsOf(texts: readonly string[]): readonly string[] {
  const names = texts.flatMap((text) => text.split(","));
  const unknown = names.filter((name) => !(FAULT_POINTS as readonly string[]).includes(name));
  if (unknown.length > 0) throw new Error(`--points ${unknown.join(",")}: no such point\n\n${USAGE}`);
  return names;
}

function say(line: string): void {
  process.stderr.write(`${line}\n`);
}
