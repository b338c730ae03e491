import { setTimeout as sleep } from "node:timers/promises";
import { MIB } from "#domain";
import { patience } from "./agent.ts";
import type { Started } from "./bench.ts";

const LOOK_MS = 2;
/** A killed process's memory comes back a moment after its end. */
const AFTER_KILL_MS = 100;
const RESERVE_BYTES = 32 * MIB;

/**
 * Looks after a machine while work is done in it, as the contract wants of whoever has machines whose limits the host keeps: near the
 * limit its agent frees memory. Where nobody does, the host's kernel kills a program, and whoever in the machine takes memory before
 * the runtime has given that back costs the next process its life, which may be the machine's own.
 */
export async function whileGuarded<T>({ machine, spec, agentOrFail }: Started, work: Promise<T>): Promise<T> {
  let isDone = false;
  const free = async (): Promise<void> => {
    // One that does not answer is asked again.
    await agentOrFail()
      .freeMemory()
      .catch(() => {});
    await sleep(AFTER_KILL_MS);
  };
  const guard = async (): Promise<void> => {
    let freeing: Promise<void> | undefined;
    for (;;) {
      const reading = machine.memory();
      if (isDone || reading === undefined) break;
      // It is looked at while the agent, which may be late, is asked.
      if (reading.usedBytes > spec.resources.memoryBytes - RESERVE_BYTES)
        freeing ??= free().finally(() => {
          freeing = undefined;
        });
      await sleep(patience(LOOK_MS));
    }
    await freeing;
  };
  const done = work.finally(() => {
    isDone = true;
  });
  const [worked, guarded] = await Promise.allSettled([done, guard()]);
  if (worked.status === "rejected") throw worked.reason;
  if (guarded.status === "rejected") throw guarded.reason;
  return worked.value;
}
