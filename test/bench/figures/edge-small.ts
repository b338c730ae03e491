import type { Figure } from "../figure.ts";
import { askThrough, NGINX, Proxies } from "../proxies.ts";
import { alternate } from "../sampling.ts";
import { median } from "../statistics.ts";

const SECONDS = 2;
/** 0.7 times the rate. */
const FACTOR = 1.43;

export const proxySmall: Figure = {
  name: "proxy_small",
  title: "a request for 100 bytes through the edge, 8 connections that are kept",
  unit: "ms",
  bar: { kind: "baseline", factor: FACTOR, plus: 0 },

  async run(context) {
    await using proxies = await Proxies.open(context);
    const { edge, nginx } = await alternate(context, {
      edge: () => askThrough(proxies.edge, "small", SECONDS),
      nginx: () => askThrough(proxies.nginx, "small", SECONDS),
    });
    const rate = (asked: typeof edge): string => median(asked.map(({ value }) => value)).toFixed(0);
    return {
      samples: edge.map(({ value }) => 1000 / value),
      baseline: { samples: nginx.map(({ value }) => 1000 / value), command: NGINX },
      notes: [`requests a second: edge ${rate(edge)}, nginx ${rate(nginx)}`],
    };
  },
};
