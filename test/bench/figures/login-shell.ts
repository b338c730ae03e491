import { Sandbox } from "e2b";
import type { Figure } from "../figure.ts";
import { Instant } from "../instant.ts";
import { alternate } from "../sampling.ts";
import { median, spread } from "../statistics.ts";

/** So soon over that many can be had; one before them does not count, on either side. */
const RUNS_PER_SAMPLE = 5;
const COMMAND = "echo hi";

/** The same command, started by a loop inside: what it costs when nobody has to be asked. Prints ms, a line for each run. */
const INSIDE_LOOP = `exec python3 -c '
import os, time
def once():
    started_at = time.perf_counter()
    reading, writing = os.pipe()
    output = [(os.POSIX_SPAWN_DUP2, writing, 1)]
    pid = os.posix_spawn("/bin/bash", ["/bin/bash", "-l", "-c", "${COMMAND}"], os.environ, file_actions=output)
    os.close(writing)
    said = b""
    while more := os.read(reading, 4096):
        said += more
    os.close(reading)
    status = os.waitpid(pid, 0)[1]
    assert (said, status) == (b"hi\\n", 0), (said, status)
    return (time.perf_counter() - started_at) * 1000
for run in range(${RUNS_PER_SAMPLE + 1}):
    took = once()
    if run > 0:
        print(took)
'`;

/** As a reader could repeat it. */
export const INSIDE = `posix_spawn of /bin/bash -l -c '${COMMAND}' by a Python program in a sandbox, until its output and it have ended`;

export const loginShell: Figure = {
  name: "login_shell",
  title:
    "`bash -l -c 'echo hi'` through the JavaScript SDK: from the call to its result, without what the SDK takes by itself",
  unit: "ms",
  bar: { kind: "baseline", factor: 1.15, plus: 3 },

  async run(context) {
    await using instant = await Instant.start();
    const nothing = await Sandbox.create("base", instant.sdkOptions);
    const sandbox = await Sandbox.create("base", { ...context.product.sdkOptions, timeoutMs: 1_200_000 });
    try {
      await context.quiet();
      const { throughSdk, bySdk, inside } = await alternate(context, {
        throughSdk: () => throughSdkMs(sandbox),
        bySdk: () => throughSdkMs(nothing),
        inside: () => insideMs(sandbox),
      });
      return {
        samples: withoutClient(throughSdk.flat(), bySdk.flat()),
        baseline: { samples: inside.flat(), command: INSIDE },
        notes: [
          `each side ${RUNS_PER_SAMPLE} times in turn, one after another`,
          `with what the SDK takes by itself: ${spread(throughSdk.flat())}`,
          `the SDK by itself, against a server that answers at once: ${spread(bySdk.flat())}`,
        ],
      };
    } finally {
      await sandbox.kill();
    }
  },
};

/** Times of a client without what it takes by itself, in the middle. */
function withoutClient(timesMs: readonly number[], clientMs: readonly number[]): number[] {
  const by = median(clientMs);
  return timesMs.map((ms) => ms - by);
}

/** The SDK itself makes `bash -l -c` of every command. */
async function throughSdkMs(sandbox: Sandbox): Promise<number[]> {
  const times: number[] = [];
  for (let run = 0; run <= RUNS_PER_SAMPLE; run += 1) {
    const startedAtMs = performance.now();
    const { stdout } = await sandbox.commands.run(COMMAND);
    const ms = performance.now() - startedAtMs;
    if (stdout !== "hi\n") throw new Error(`"${COMMAND}" said ${JSON.stringify(stdout)}`);
    if (run > 0) times.push(ms);
  }
  return times;
}

/** Starts the shell inside some times; how long each took. */
export async function insideMs(sandbox: Sandbox): Promise<number[]> {
  const { stdout } = await sandbox.commands.run(INSIDE_LOOP);
  return stdout.trim().split("\n").map(Number);
}
