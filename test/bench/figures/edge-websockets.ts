import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import type { Readable } from "node:stream";
import { setTimeout as sleep } from "node:timers/promises";
import { fromSetUp } from "../../e2e/start.ts";
import type { Figure } from "../figure.ts";
import { rssKib, slabKib } from "../memory.ts";
import { type Front, Proxies } from "../proxies.ts";

const COUNT = 1000;
/** One port takes 2,048 connections. */
const BATCHES = 2;
/** For what was used while they were opened to be given back. */
const SETTLE_MS = 3000;
/** Of the kernel's three sockets for each, two are the edge's; the third is the client's. */
const OF_THE_EDGE = 2 / 3;

export const websockets: Figure = {
  name: "websockets",
  title: `memory of the edge and its kernel for each of ${COUNT} idle WebSockets`,
  unit: "KiB",
  bar: { kind: "absolute", most: 30 },

  async run(context) {
    await using proxies = await Proxies.open(context);
    const edge = await grown(proxies.edge, BATCHES);
    const nginx = await grown(proxies.nginx, 1);
    const text = ({ rssKib, kernelKib }: Growth): string =>
      `${rssKib.toFixed(1)} KiB of the process, ${kernelKib.toFixed(1)} KiB of the kernel`;
    return {
      samples: edge.map(({ rssKib, kernelKib }) => rssKib + kernelKib),
      count: COUNT,
      notes: [
        ...edge.map((growth) => `edge, ${COUNT} more: ${text(growth)}`),
        ...nginx.map((growth) => `nginx: ${text(growth)}`),
      ],
    };
  },
};

interface Growth {
  readonly rssKib: number;
  readonly kernelKib: number;
}

/** What each of another batch costs, while those before are held: what was given back once would cost nothing again. */
async function grown(front: Front, batches: number): Promise<Growth[]> {
  const clients: ChildProcess[] = [];
  const growths: Growth[] = [];
  try {
    for (let at = 0; at < batches; at += 1) {
      const before = { rss: rssKib(front.pid), slab: slabKib() };
      const argv = ["idle", front.url, String(COUNT), ...front.headers];
      const client = spawn(fromSetUp("AENV_BENCH_PROBE"), argv, { stdio: ["pipe", "pipe", "inherit"] });
      clients.push(client);
      await opened(client);
      await sleep(SETTLE_MS);
      growths.push({
        rssKib: (rssKib(front.pid) - before.rss) / COUNT,
        kernelKib: ((slabKib() - before.slab) * OF_THE_EDGE) / COUNT,
      });
    }
    return growths;
  } finally {
    for (const client of clients) {
      client.stdin?.end();
      if (client.exitCode === null && client.signalCode === null) await once(client, "exit");
    }
  }
}

/** Until the probe says that all are open; throws when it ends instead. */
async function opened(client: ChildProcess): Promise<void> {
  const ended = once(client, "exit").then(([code]) => {
    throw new Error(`the probe ended with ${code} before its WebSockets were open`);
  });
  await Promise.race([once(client.stdout as Readable, "data"), ended]);
}
