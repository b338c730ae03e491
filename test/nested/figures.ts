import { MIB } from "#domain";
import { TestAgent } from "../../src/driver/testing/agent.ts";
import { firecrackerFigures } from "../host/firecracker/figures.ts";
import { openLinuxBench } from "./linux-bench.ts";

/** The figures with Linux guests that have written 16 MiB anew, in the nested machine. */
async function figures(): Promise<string> {
  await using bench = await openLinuxBench();
  const agents = new Map<string, TestAgent>();
  const agentAt = (address = ""): TestAgent => {
    const agent = agents.get(address) ?? new TestAgent(address);
    agents.set(address, agent);
    return agent;
  };
  const text = await firecrackerFigures({
    bench,
    resources: { vcpus: 1, memoryBytes: 256 * MIB, diskBytes: 512 * MIB, pidsMax: 1024 },
    rounds: 7,
    warmUp: 3,
    ready: (address) => agentAt(address).ready(),
    dirty: async (address) => {
      await agentAt(address).run("head -c 16M /dev/urandom > /dev/shm/dirty");
    },
  });
  for (const agent of agents.values()) agent.close();
  return text;
}

// Not awaited here: it becomes part of a script that is no module.
process.exitCode = 1;
void figures().then((text) => {
  process.stdout.write(`${text}\n`);
  process.exitCode = 0;
});
