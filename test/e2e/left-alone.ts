import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import { CommandExitError } from "e2b";
import { newSandbox } from "./sdk.ts";
import { until } from "./server.ts";

const ATTACH_AFTER_S = [10, 70, 130];
/** Until then it may stand still for want of visitors, and go on when it is attached to. */
const LIFE_MS = 300_000;

/** A command whose client leaves at once is come back to after so many seconds, and ended by a signal at last. */
export async function comeBackToWhatWasLeftAlone(): Promise<void> {
  await using sandbox = await newSandbox({ timeoutMs: LIFE_MS });
  const script = "n=0; while :; do echo $n; n=$((n + 1)); sleep 0.5; done";
  const first = await sandbox.commands.run(script, { background: true, timeoutMs: 0 });
  const leftAtMs = performance.now();
  await first.disconnect();
  const isListed = async (): Promise<boolean> => (await sandbox.commands.list()).some(({ pid }) => pid === first.pid);
  for (const afterS of ATTACH_AFTER_S) {
    await sleep(leftAtMs + afterS * 1000 - performance.now());
    assert.ok(await isListed(), `after ${afterS} s it is not listed`);
    const again = await sandbox.commands.connect(first.pid, { timeoutMs: 0 });
    const lines = (): string[] => again.stdout.split("\n").slice(0, -1);
    await until(`what was said within ${afterS} s`, () => lines().length > 0);
    const said = lines().length;
    await until(`more after ${afterS} s`, () => lines().length >= said + 3);
    assert.deepEqual(
      lines(),
      lines().map((_, at) => String(at)),
    );
    if (afterS !== ATTACH_AFTER_S.at(-1)) {
      await again.disconnect();
      continue;
    }
    assert.equal(await sandbox.commands.kill(first.pid), true);
    await assert.rejects(again.wait(), CommandExitError);
    assert.equal(await isListed(), false, "it is listed when it has ended");
  }
}
