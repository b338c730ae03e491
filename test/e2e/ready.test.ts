import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Sandbox, type SandboxOpts } from "e2b";
import { assertNothingLost, metric } from "./host.ts";
import { askThroughEdge, Live, SERVICE_PORT } from "./live.ts";
import { newSandbox, output } from "./sdk.ts";
import { sharedServer } from "./server.ts";

const HOT_STARTS = 'aenv_starts_total{from="clone"}';
const WARM_RESUMES = 'aenv_resumes_total{from="copy"}';
const COPIES = 'aenv_ready_machines{kind="copy"}';

async function figure(name: string): Promise<number> {
  return await metric(await sharedServer(), name);
}

/** A sandbox that was started from a ready clone: there is one a moment after the start before. */
async function fromClone(options: SandboxOpts = {}): Promise<Sandbox & AsyncDisposable> {
  for (const giveUpAtMs = Date.now() + 30_000; ; await sleep(200)) {
    const before = await figure(HOT_STARTS);
    const sandbox = await newSandbox(options);
    if ((await figure(HOT_STARTS)) === before + 1) return sandbox;
    await sandbox.kill();
    assert.ok(Date.now() < giveUpAtMs, "no start finds a ready clone");
  }
}

describe("what stands ready", { timeout: 300_000 }, () => {
  it("starts a sandbox that is like any other: its own name, token, variables and time", async () => {
    await using sandbox = await fromClone({ envs: { GREETING: "hello" }, metadata: { who: "me" } });
    assert.equal(await output(sandbox, "echo $GREETING $E2B_SANDBOX_ID"), `hello ${sandbox.sandboxId}`);
    assert.equal(
      await output(sandbox, "hostname; getent hosts $(hostname) >/dev/null && echo known"),
      `${sandbox.sandboxId}\nknown`,
    );
    const driftMs = Number(await output(sandbox, "date +%s%3N")) - Date.now();
    assert.ok(Math.abs(driftMs) < 1_000, `${driftMs} ms off`);
    assert.deepEqual((await sandbox.getInfo()).metadata, { who: "me" });
    await using other = await newSandbox();
    const random = "head -c 16 /dev/urandom | od -An -tx1";
    assert.notEqual(await output(sandbox, random), await output(other, random));
    await assertNothingLost(await sharedServer());
  });

  it("keeps a sandbox without internet from it", async () => {
    await using sandbox = await fromClone({ allowInternetAccess: false });
    const reached = await output(sandbox, "timeout 2 bash -c '</dev/tcp/1.1.1.1/443' && echo reached || echo not");
    assert.equal(reached, "not");
  });

  it("serves a burst that is larger than it, each once", async () => {
    const burst = await Promise.all(Array.from({ length: 5 }, () => newSandbox()));
    try {
      const said = await Promise.all(burst.map((sandbox) => output(sandbox, "hostname")));
      assert.deepEqual(
        said,
        burst.map(({ sandboxId }) => sandboxId),
      );
    } finally {
      await Promise.all(burst.map((sandbox) => sandbox.kill()));
    }
    await assertNothingLost(await sharedServer());
  });

  it("resumes a sandbox that was paused a moment ago by thawing it: programs, files and services go on", async () => {
    await using sandbox = await newSandbox();
    const { url } = await sharedServer();
    const live = await Live.start(sandbox);
    await sandbox.files.write("note", "kept");
    for (const round of [1, 2]) {
      const before = await figure(WARM_RESUMES);
      await sandbox.pause();
      assert.ok((await figure(COPIES)) >= 1);
      const both = await Promise.all([1, 2].map(() => Sandbox.connect(sandbox.sandboxId)));
      assert.equal(both.length, 2);
      assert.equal(await figure(WARM_RESUMES), before + 1, `round ${round}`);
      await live.assertGoesOn();
      assert.equal(await sandbox.files.read("note"), "kept");
      assert.ok((await askThroughEdge(url, sandbox, SERVICE_PORT)).pid > 1);
      await live.resync();
    }
    await sandbox.pause();
    await sandbox.kill();
    await assertNothingLost(await sharedServer());
  });
});
