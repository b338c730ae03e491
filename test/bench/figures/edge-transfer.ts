import type { Figure } from "../figure.ts";
import { askThrough, NGINX, Proxies } from "../proxies.ts";
import { alternate } from "../sampling.ts";
import { median } from "../statistics.ts";

const GIB = 1024 ** 3;
/** A gibibyte is long enough to be its own average. */
const ROUNDS = 7;

export const transferDown = transfer("down", "1 GiB from a service in a sandbox through the edge");
export const transferUp = transfer("up", "1 GiB to a service in a sandbox through the edge");

function transfer(direction: "down" | "up", title: string): Figure {
  return {
    name: `transfer_${direction}`,
    title,
    unit: "ms",
    bar: { kind: "baseline", factor: 1, plus: 0 },

    async run(context) {
      await using proxies = await Proxies.open(context);
      const { edge, nginx } = await alternate(
        { ...context, samples: Math.min(context.samples, ROUNDS) },
        {
          edge: () => askThrough(proxies.edge, direction, GIB),
          nginx: () => askThrough(proxies.nginx, direction, GIB),
        },
      );
      const cpu = (asked: typeof edge): string => median(asked.map(({ cpuS }) => cpuS)).toFixed(2);
      return {
        samples: edge.map(({ value }) => value * 1000),
        baseline: { samples: nginx.map(({ value }) => value * 1000), command: NGINX },
        notes: [`processors, seconds for a GiB: edge ${cpu(edge)}, nginx ${cpu(nginx)}`],
      };
    },
  };
}
