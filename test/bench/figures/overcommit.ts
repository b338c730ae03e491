import { setTimeout as sleep } from "node:timers/promises";
import { openCgroups } from "../../../src/driver/cgroup/index.ts";
import { atOnce } from "../at-once.ts";
import type { BenchContext } from "../context.ts";
import { type Figure, MissingError } from "../figure.ts";
import { GuestClient } from "../guest.ts";
import { hostMemoryKib } from "../memory.ts";
import type { Product, Sandbox } from "../product.ts";
import { takenOnce } from "../sampling.ts";
import { spread } from "../statistics.ts";

const COUNT = 40;
const GIVEN_MIB = 1024;
const TOUCHED_MIB = 256;
const MADE_AT_ONCE = 4;
const IDLE_MS = 60_000;
/** After that, how long processors are looked at. */
const CPU_WINDOW_MS = 20_000;
const PORT = 7000;
const MOST_MIB = (COUNT * GIVEN_MIB) / 9.6;

export const overcommitMemory: Figure = {
  name: "overcommit_memory",
  group: "overcommit",
  title: `memory of the node for ${COUNT} sandboxes of ${GIVEN_MIB} MiB that hold ${TOUCHED_MIB} each, idle for ${IDLE_MS / 1000} s`,
  unit: "MiB",
  bar: { kind: "absolute", most: MOST_MIB },

  async run(context) {
    const { usedMib, busyMib } = await taken(context);
    return {
      samples: [usedMib],
      count: COUNT,
      notes: [`before they were idle: ${busyMib.toFixed(0)} MiB; given: ${COUNT * GIVEN_MIB} MiB`],
    };
  },
};

export const overcommitCpu: Figure = {
  name: "overcommit_cpu",
  group: "overcommit",
  title: "what all of these sandboxes use of processors while idle",
  unit: "% of a core",
  bar: { kind: "absolute", most: 1 },

  async run(context) {
    const { cpuPercent } = await taken(context);
    return { samples: [cpuPercent], count: COUNT, notes: [`over ${CPU_WINDOW_MS / 1000} s`] };
  },
};

export const overcommitWake: Figure = {
  name: "overcommit_wake",
  group: "overcommit",
  title: "then the first answer of a service in each through the edge, which reads a MiB of its data",
  unit: "ms",
  bar: { kind: "absolute", most: 100, p99: 500 },

  async run(context) {
    const { wakeMs } = await taken(context);
    return { samples: wakeMs, notes: [`one after another: ${spread(wakeMs)}`, "all data is what it was"] };
  },
};

interface Taken {
  /** Memory of the node, with the server's: with all of it touched, and after being idle. */
  readonly busyMib: number;
  readonly usedMib: number;
  readonly cpuPercent: number;
  readonly wakeMs: number[];
}

const taken = takenOnce(async (context: BenchContext): Promise<Taken> => {
  const { product, quiet, nodeMib, say } = context;
  const needMib = COUNT * TOUCHED_MIB * 1.2;
  const hasMib = hostMemoryKib().available / 1024;
  if (hasMib < needMib) throw new MissingError(`${needMib} MiB of memory; ${hasMib.toFixed(0)} are available`);
  await quiet();
  const sandboxes: Sandbox[] = [];
  try {
    await atOnce(MADE_AT_ONCE, Array.from({ length: COUNT }), async () => {
      const sandbox = await product.create();
      sandboxes.push(sandbox);
      await serve(product, sandbox);
    });
    const busyMib = nodeMib();
    say(`${COUNT} hold their data; idle for ${IDLE_MS / 1000} s`);
    await sleep(IDLE_MS);
    const usedMib = nodeMib();
    const cpuPercent = await cpuOver(product, sandboxes);
    const wakeMs: number[] = [];
    for (const [at, sandbox] of sandboxes.entries()) wakeMs.push(await wake(product, sandbox, at));
    await atOnce(MADE_AT_ONCE, sandboxes, (sandbox) => intact(product, sandbox, "all"));
    return { busyMib, usedMib, cpuPercent, wakeMs };
  } finally {
    await atOnce(MADE_AT_ONCE, sandboxes, (sandbox) => product.kill(sandbox));
  }
});

/** Starts what holds the data and says whether it is what it was: all of it, or one MiB. */
async function serve(product: Product, sandbox: Sandbox): Promise<void> {
  const { id, accessToken } = sandbox;
  const guest = new GuestClient(product.server.url, { ...product.edgeHeaders(id), "x-access-token": accessToken });
  await guest.spawn(`exec python3 -u -c '
import hashlib, os
from http.server import BaseHTTPRequestHandler, HTTPServer
held = [os.urandom(1 << 20) for _ in range(${TOUCHED_MIB})]
digest = lambda data: hashlib.sha256(data).digest()
sums = [digest(each) for each in held]
class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        which = range(len(held)) if self.path == "/all" else [int(self.path[1:])]
        said = b"intact" if all(digest(held[at]) == sums[at] for at in which) else b"broken"
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)
server = HTTPServer(("", ${PORT}), Answer)
print("held")
server.serve_forever()
'`);
  guest.close();
  await intact(product, sandbox, "0");
}

async function wake(product: Product, sandbox: Sandbox, at: number): Promise<number> {
  const startedAtMs = performance.now();
  await intact(product, sandbox, String(at % TOUCHED_MIB));
  return performance.now() - startedAtMs;
}

async function intact(product: Product, sandbox: Sandbox, which: string): Promise<void> {
  const said = await product.serviceAnswer(sandbox, PORT, `/${which}`);
  if (said !== "intact") throw new Error(`the data of ${sandbox.id} is ${said}`);
}

/** What the sandboxes use, in percent of one core. */
async function cpuOver({ index }: Product, sandboxes: readonly Sandbox[]): Promise<number> {
  const cgroups = openCgroups(`/aenv/${index}`);
  const usec = (): Map<string, number> => {
    const machines = cgroups.list().filter((name) => sandboxes.some(({ id }) => name.startsWith(id)));
    return new Map(machines.map((machine) => [machine, cgroups.stats(machine).cpuUsec]));
  };
  const [before, startedAtMs] = [usec(), performance.now()];
  await sleep(CPU_WINDOW_MS);
  const tookMs = performance.now() - startedAtMs;
  // One that has no machine uses nothing.
  const used = [...usec()].reduce((sum, [machine, now]) => sum + now - (before.get(machine) ?? 0), 0);
  return used / (tookMs * 10);
}
