import { setTimeout as sleep } from "node:timers/promises";
import { type CommandHandle, Sandbox } from "e2b";
import { MIB } from "#domain";
import { until } from "../../e2e/start.ts";
import type { BenchContext } from "../context.ts";
import type { Figure } from "../figure.ts";
import { GuestClient } from "../guest.ts";
import { rssKib } from "../memory.ts";

const OUTPUT_MIB = 1024;
/** The reader takes this much, then stands still for a while, so that all buffers on the way fill again and again. */
const BURST_MIB = 32;
const REST_MS = 400;
const ROUNDS = 2;

/** Looks at the agent's memory all the time; prints KiB whenever it is more than ever before. */
const WATCH_AGENT = `exec python3 -u -c '
import os, time
def comm(pid):
    with open(f"/proc/{pid}/comm") as file:
        return file.read().strip()
agent = next(pid for pid in os.listdir("/proc") if pid.isdigit() and comm(pid) == "envd")
most = 0
while True:
    with open(f"/proc/{agent}/status") as file:
        now = next(int(line.split()[1]) for line in file if line.startswith("VmRSS:"))
    if now > most:
        most = now
        print(most)
    time.sleep(0.02)
'`;

export const stdoutBackpressure: Figure = {
  name: "stdout_backpressure",
  title: `most memory of the agent while a slow reader takes ${OUTPUT_MIB} MiB of a command's output through the edge`,
  unit: "MiB",
  bar: { kind: "absolute", most: 64 },

  async run(context) {
    const rounds: Round[] = [];
    for (let round = 1; round <= Math.min(ROUNDS, context.samples); round += 1) {
      rounds.push(await takeSlowly(context));
      context.say(`${round}/${ROUNDS}`);
    }
    return {
      samples: rounds.map(({ agentMib }) => agentMib),
      notes: rounds.map(
        ({ idleMib, edgeGrewMib, tookS }) =>
          `agent before ${idleMib.toFixed(1)} MiB; edge grew by ${edgeGrewMib.toFixed(1)} MiB; ${tookS.toFixed(1)} s in all`,
      ),
    };
  },
};

interface Round {
  /** The agent's resident memory: before, and the most during. */
  readonly idleMib: number;
  readonly agentMib: number;
  readonly edgeGrewMib: number;
  readonly tookS: number;
}

async function takeSlowly({ product }: BenchContext): Promise<Round> {
  const sandbox = await Sandbox.create("base", { ...product.sdkOptions, timeoutMs: 600_000 });
  const { accessToken } = await product.find(sandbox.sandboxId);
  // The SDK's own stack (Connect, JSON), but not its handle: that keeps all output as one string, which V8 ends at 512 MiB.
  const guest = new GuestClient(product.server.url, {
    ...product.edgeHeaders(sandbox.sandboxId),
    "x-access-token": accessToken,
  });
  try {
    const watch = await sandbox.commands.run(WATCH_AGENT, { background: true, timeoutMs: 0 });
    await until("the agent's memory", () => watch.stdout !== "");
    const idleMib = mostSaid(watch);
    const edge = { pid: product.server.pid("edge"), beforeKib: rssKib(product.server.pid("edge")), mostKib: 0 };
    const startedAtMs = performance.now();
    await readSlowly(guest, () => {
      edge.mostKib = Math.max(edge.mostKib, rssKib(edge.pid));
    });
    return {
      idleMib,
      agentMib: mostSaid(watch),
      edgeGrewMib: (edge.mostKib - edge.beforeKib) / 1024,
      tookS: (performance.now() - startedAtMs) / 1000,
    };
  } finally {
    guest.close();
    await sandbox.kill();
  }
}

/** Takes the whole output; throws when it is not complete. Calls back in the middle of each rest. */
async function readSlowly(guest: GuestClient, atRest: () => void): Promise<void> {
  let bytes = 0;
  let restAt = BURST_MIB * MIB;
  for await (const chunk of guest.stdout(`exec head --bytes=${OUTPUT_MIB}M /dev/zero`)) {
    bytes += chunk.byteLength;
    if (bytes < restAt) continue;
    restAt += BURST_MIB * MIB;
    await sleep(REST_MS / 2);
    atRest();
    await sleep(REST_MS / 2);
  }
  if (bytes !== OUTPUT_MIB * MIB) throw new Error(`${bytes} bytes came instead of ${OUTPUT_MIB} MiB`);
}

function mostSaid({ stdout }: CommandHandle): number {
  const lines = stdout.split("\n").slice(0, -1);
  return Number(lines.at(-1)) / 1024;
}
