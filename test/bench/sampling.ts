import type { BenchContext } from "./context.ts";

/** Takes `context.samples` samples of each side, turn about, after a round that does not count: whatever disturbs the
 *  machine meanwhile disturbs all of them. Which one goes first changes from round to round. */
export async function alternate<T extends Readonly<Record<string, () => Promise<unknown>>>>(
  context: Pick<BenchContext, "samples" | "say">,
  sides: T,
): Promise<{ [Name in keyof T]: Awaited<ReturnType<T[Name]>>[] }> {
  const taken = Object.fromEntries(Object.keys(sides).map((name) => [name, [] as unknown[]]));
  const turns = Object.entries(sides);
  for (let round = 0; round <= context.samples; round += 1) {
    for (const [name, take] of turns) {
      const sample = await take();
      if (round > 0) taken[name]?.push(sample);
    }
    turns.reverse();
    if (round > 0) context.say(`${round}/${context.samples}`);
  }
  return taken as { [Name in keyof T]: Awaited<ReturnType<T[Name]>>[] };
}

/** For figures that tell of the same samples: takes them once of each server. */
export function takenOnce<T>(take: (context: BenchContext) => Promise<T>): (context: BenchContext) => Promise<T> {
  const taken = new WeakMap<object, Promise<T>>();
  return (context) => {
    const present = taken.get(context.product);
    if (present !== undefined) return present;
    const taking = take(context);
    taken.set(context.product, taking);
    return taking;
  };
}
