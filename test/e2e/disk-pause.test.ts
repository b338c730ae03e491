import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { Sandbox } from "e2b";
import { call, detailOf } from "./calls.ts";
import { assertNothingLost } from "./host.ts";
import { newSandbox, output } from "./sdk.ts";
import { sharedServer, until } from "./server.ts";

const BOOT_ID = "cat /proc/sys/kernel/random/boot_id";
const NO_MEMORY = { keepMemory: false };

async function stateOf({ sandboxId }: Sandbox): Promise<string> {
  return (await detailOf(await sharedServer(), sandboxId)).state;
}

/** How the edge answers for a port of it. */
async function knock({ sandboxId }: Sandbox): Promise<number> {
  const { url } = await sharedServer();
  const headers = { "E2b-Sandbox-Id": sandboxId, "E2b-Sandbox-Port": "8000" };
  const answer = await fetch(url, { headers });
  await answer.body?.cancel();
  return answer.status;
}

describe("a sandbox paused without its memory", { timeout: 240_000 }, () => {
  it("SNAP-13: is booted with all that was written just before, as the same sandbox", async () => {
    await using sandbox = await newSandbox({ envs: { GIVEN: "kept" } });
    const boot = await output(sandbox, BOOT_ID);
    const who = await output(sandbox, "whoami; pwd; echo $GIVEN");
    await sandbox.commands.run("sleep 86400", { background: true, timeoutMs: 0 });
    const sums = await output(sandbox, "head -c 100M /dev/urandom > large; echo small > small; sha256sum large small");
    assert.equal(await sandbox.pause(NO_MEMORY), true);
    assert.equal(await sandbox.pause(NO_MEMORY), false);
    assert.equal(await stateOf(sandbox), "paused");
    const again = await sandbox.connect();
    assert.equal(again.sandboxId, sandbox.sandboxId);
    assert.equal(await output(sandbox, "sha256sum large small"), sums);
    assert.notEqual(await output(sandbox, BOOT_ID), boot);
    assert.equal(await output(sandbox, "whoami; pwd; echo $GIVEN"), who);
    assert.equal(await output(sandbox, "pgrep -xc sleep || true"), "0");
  });

  it("LIFE-08: is afterwards one like any other, over pauses of both kinds and in forks", async () => {
    await using sandbox = await newSandbox();
    await sandbox.commands.run("mkdir -p work/keep; sudo rm /etc/issue");
    const manifest = () =>
      output(sandbox, "ls /etc/issue 2>&1; cd work; find . -type f -exec sha256sum {} + | sort; find . -type d | sort");
    for (const [cycle, options] of [NO_MEMORY, {}, NO_MEMORY, NO_MEMORY].entries()) {
      await sandbox.commands.run(
        `cd work; echo ${cycle} > new${cycle}; echo ${cycle} >> changed; mkdir dir${cycle}; head -c 300000 /dev/urandom > dir${cycle}/f
         [ -e new${cycle - 1} ] && mv new${cycle - 1} keep/renamed${cycle - 1}; rm -rf dir${cycle - 2}; ln -f changed keep/link; true`,
      );
      const [before, boot] = [await manifest(), await output(sandbox, BOOT_ID)];
      await sandbox.pause(options);
      await sandbox.connect({ timeoutMs: 60_000 });
      assert.equal(await manifest(), before, `cycle ${cycle}`);
      assert.equal((await output(sandbox, BOOT_ID)) === boot, options !== NO_MEMORY);
    }
    await sandbox.commands.run("exec sleep 86400", { background: true, timeoutMs: 0 });
    const [fork] = await sandbox.fork();
    assert.ok(fork instanceof Sandbox, String(fork));
    try {
      assert.equal(await output(fork, "pgrep -xc sleep; cat work/new3"), "1\n3");
    } finally {
      await fork.kill();
    }
  });

  it("LIFE-07: at its timeout too, loses nothing, and is not woken by traffic", async () => {
    const onTimeout = { action: "pause" as const, ...NO_MEMORY };
    await using sandbox = await newSandbox({ lifecycle: { onTimeout } });
    await sandbox.commands.run(
      "seq 20000 > seq; mkdir work; for i in $(seq 40); do head -c 65536 /dev/urandom > work/$i; done; cd work; sha256sum * > ../sums",
    );
    await sandbox.commands.run("i=0; while :; do echo $((i=i+1)) >> log; done", { background: true, timeoutMs: 0 });
    await sandbox.setTimeout(500);
    await until("the pause", async () => (await stateOf(sandbox)) === "paused");
    assert.equal(await knock(sandbox), 502);
    assert.equal(await stateOf(sandbox), "paused");
    await sandbox.connect();
    assert.equal(
      await output(sandbox, "cd work && sha256sum --quiet -c ../sums && cmp ../seq <(seq 20000) && echo whole"),
      "whole",
    );
    assert.equal(await output(sandbox, "cmp log <(seq $(wc -l < log)) && echo 'no hole'"), "no hole");
  });

  it("by hand, one that traffic wakes stays paused all the same", async () => {
    await using sandbox = await newSandbox({ lifecycle: { onTimeout: "pause", autoResume: true } });
    await sandbox.pause(NO_MEMORY);
    assert.equal(await knock(sandbox), 502);
    assert.equal(await stateOf(sandbox), "paused");
    await sandbox.connect();
    await sandbox.pause();
    await knock(sandbox);
    assert.equal(await stateOf(sandbox), "running");
  });

  it("can be rebooted though its memory was kept, with what it had written", async () => {
    await using sandbox = await newSandbox();
    const boot = await output(sandbox, BOOT_ID);
    await sandbox.commands.run("exec sleep 86400", { background: true, timeoutMs: 0 });
    const sums = await output(sandbox, "head -c 30M /dev/urandom > large; sha256sum large");
    await sandbox.pause();
    await sandbox.connect({ onResume: "reboot" });
    assert.equal(await output(sandbox, "sha256sum large; pgrep -xc sleep || true"), `${sums}\n0`);
    const rebooted = await output(sandbox, BOOT_ID);
    assert.notEqual(rebooted, boot);
    await sandbox.connect({ onResume: "reboot" });
    assert.equal(await output(sandbox, BOOT_ID), rebooted, "of no effect on one that runs");
    await assertNothingLost(await sharedServer());
  });

  it("is refused where the fields contradict each other", async () => {
    const server = await sharedServer();
    for (const more of [{}, { autoPause: true, autoResume: { enabled: true } }]) {
      const { status, body } = await call(server, "POST", "/v2/sandboxes", {
        templateID: "base",
        autoPauseMemory: false,
        ...more,
      });
      assert.equal(status, 400);
      assert.match(body.message, /^autoPauseMemory=false /);
    }
  });
});
