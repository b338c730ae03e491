import { Sandbox } from "e2b";
import { AGENT_PORT } from "#guest";
import type { Figure } from "../figure.ts";
import { GuestClient } from "../guest.ts";
import { alternate } from "../sampling.ts";

/** Starting a program costs this much inside, whoever asks for it. */
const FLOOR = `python3 -c '
import os, statistics, time
def once():
    start = time.perf_counter()
    os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
    return (time.perf_counter() - start) * 1000
print(statistics.median(once() for _ in range(50)))
'`;

/** A command is over so soon that many can be had, and this machine's own unrest is as long as one of them. */
const ROUNDS_PER_SAMPLE = 5;

export const exec: Figure = {
  name: "exec",
  title: "`true` through the JavaScript SDK on a kept connection",
  unit: "ms",
  bar: { kind: "baseline", factor: 1.15, plus: 1.5 },

  async run(context) {
    const { product } = context;
    const sandbox = await Sandbox.create("base", { ...product.sdkOptions, timeoutMs: 600_000 });
    const { sandboxId } = sandbox;
    const info = await product.find(sandboxId);
    const direct = new GuestClient(`http://${product.slotAddress(info)}:${AGENT_PORT}`, {
      "x-access-token": info.accessToken,
    });
    try {
      await context.quiet();
      const { throughSdk, directly } = await alternate(
        { ...context, samples: context.samples * ROUNDS_PER_SAMPLE },
        {
          throughSdk: () => timed(context.sync, () => sandbox.commands.run("true")),
          directly: () => timed(context.sync, () => direct.run("true")),
        },
      );
      const floor = Number(await direct.run(FLOOR));
      return {
        samples: throughSdk,
        baseline: {
          samples: directly,
          command:
            "process.Process/Start {cmd: /bin/bash, args: [-l, -c, true]} at SLOT:49983 by a Connect client (HTTP/1.1, JSON, kept connection)",
        },
        notes: [
          `floor: fork + exec of /bin/true inside takes ${floor.toFixed(1)} ms; the SDK asks for bash -l -c true`,
        ],
      };
    } finally {
      direct.close();
      await sandbox.kill();
    }
  },
};

async function timed(sync: () => Promise<void>, work: () => Promise<unknown>): Promise<number> {
  await sync();
  const startedAtMs = performance.now();
  await work();
  return performance.now() - startedAtMs;
}
