import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { test } from "node:test";

/** Ten times what the longest of them takes. */
const TEST_TIMEOUT_MS = 40_000;
const RUN_TIMEOUT_MS = 120_000;

const isRoot = process.getuid?.() === 0;

/**
 * The tests themselves are in `network/isolation.ts`. They run inside a network namespace that plays the host, with
 * another one as its internet: nothing is changed on the real host, and the host can be given any address.
 */
test("slots isolate sandboxes on a host of their own", {
  skip: !isRoot && "needs root",
  timeout: RUN_TIMEOUT_MS,
}, async (t) => {
  const [host, internet] = [`aenvtest${process.pid}-host`, `aenvtest${process.pid}-net`];
  for (const name of [host, internet]) execFileSync("ip", ["netns", "add", name]);
  try {
    const { NODE_TEST_CONTEXT: _, ...env } = process.env;
    const tests = join(import.meta.dirname, "network/isolation.ts");
    const node = [process.execPath, `--test-timeout=${TEST_TIMEOUT_MS}`, tests];
    const child = spawn("nsenter", [`--net=/run/netns/${host}`, ...node], {
      env: { ...env, AENV_TEST_INTERNET_NETNS: internet },
      stdio: ["ignore", "pipe", "inherit"],
      // Before this test's own time is over, so that what was said until then is told.
      timeout: RUN_TIMEOUT_MS - 10_000,
    });
    const [said, [exitCode]] = await Promise.all([text(child.stdout), once(child, "exit")]);
    t.diagnostic(said);
    assert.equal(exitCode, 0, said);
  } finally {
    for (const name of [host, internet]) execFileSync("ip", ["netns", "del", name]);
  }
});
