import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Sandbox, SandboxNotFoundError } from "e2b";
import { call, type LogEntry, logsOf, messagesOf } from "./calls.ts";
import { e2b } from "./e2b-cli.ts";
import { newSandbox } from "./sdk.ts";
import { sharedServer, until } from "./server.ts";

const MIB = 1024 * 1024;

/** The first reading taken after now that fits. */
async function reading(sandbox: Sandbox, what: string, fits: (metric: Metric) => boolean): Promise<Metric> {
  const since = new Date();
  let found: Metric | undefined;
  await until(what, async () => {
    found = (await sandbox.getMetrics()).find((metric) => metric.timestamp > since && fits(metric));
    await sleep(250);
    return found !== undefined;
  });
  return found as Metric;
}
type Metric = Awaited<ReturnType<Sandbox["getMetrics"]>>[number];

describe("metrics of a sandbox", { timeout: 240_000 }, () => {
  it("come within seconds, by the SDK; a range holds, an old one is empty; they are true", async () => {
    await using sandbox = await newSandbox();
    const createdAtMs = Date.now();
    const idle = await reading(sandbox, "the first reading", () => true);
    assert.ok(idle.timestamp.getTime() - createdAtMs < 5_000, `after ${idle.timestamp.getTime() - createdAtMs} ms`);
    const { cpuCount, memoryMB } = await sandbox.getInfo();
    assert.equal(idle.cpuCount, cpuCount);
    assert.ok(Math.abs(idle.memTotal / MIB - memoryMB) <= memoryMB * 0.05, `${idle.memTotal / MIB} of ${memoryMB}`);
    assert.ok(idle.memUsed > 0 && idle.memUsed < idle.memTotal && idle.memCache >= 0);
    assert.ok(idle.diskUsed > 0 && idle.diskUsed < idle.diskTotal);

    await sandbox.commands.run("head -c 104857600 /dev/urandom > big && sync");
    const holder = await sandbox.commands.run(
      `python3 -c 'import time; held = b"x" * (100 << 20); print("held", flush=True); time.sleep(600)'`,
      { background: true, timeoutMs: 0 },
    );
    await until("the memory", () => holder.stdout.includes("held"));
    const busy = await sandbox.commands.run("while :; do :; done", { background: true, timeoutMs: 0 });
    // The loop is one processor's worth of all; others on this host may take some of its time.
    const isLoop = ({ cpuUsedPct }: Metric) => cpuUsedPct >= 50 / cpuCount && cpuUsedPct <= 115 / cpuCount;
    const loaded = await reading(sandbox, "a reading of the loop", isLoop);
    for (const [what, bytes] of [
      ["memory", loaded.memUsed - idle.memUsed],
      ["disk", loaded.diskUsed - idle.diskUsed],
    ] as const)
      assert.ok(bytes > 90 * MIB && bytes < 150 * MIB, `${what}: ${bytes / MIB} MiB`);
    for (const handle of [busy, holder]) await handle.kill();

    const start = new Date(idle.timestamp.getTime() + 1_000);
    const later = await sandbox.getMetrics({ start, end: new Date() });
    assert.ok(later.length >= 1 && later.every(({ timestamp }) => timestamp > idle.timestamp));
    assert.deepEqual(await sandbox.getMetrics({ start: new Date(0), end: new Date(createdAtMs - 60_000) }), []);
    await assert.rejects(Sandbox.getMetrics("inosuchsandbox000000"), SandboxNotFoundError);
    const batch = await call<{ sandboxes: Record<string, { timestampUnix: number }> }>(
      await sharedServer(),
      "GET",
      `/sandboxes/metrics?sandbox_ids=${sandbox.sandboxId},inosuchsandbox000000`,
    );
    assert.deepEqual(Object.keys(batch.body.sandboxes), [sandbox.sandboxId]);
  });
});

describe("logs of a sandbox", { timeout: 240_000 }, () => {
  it("tell at once what its processes did, over a pause, and after its end", async () => {
    await using sandbox = await newSandbox();
    await sandbox.commands.run("echo one; echo two >&2");
    const entries = await logsOf(await sharedServer(), sandbox.sandboxId);
    assert.equal(entries[0]?.fields.event_type, "agent_ready");
    const about = (type: string) => entries.filter(({ fields }) => fields.event_type === type);
    const [start] = about("process_start");
    assert.match(start?.fields.command ?? "", /echo one; echo two/);
    assert.equal(start?.fields.user, "user");
    const pid = start?.fields.pid;
    assert.deepEqual(
      ["stdout", "stderr", "process_end"].map((type) =>
        about(type).map(({ message, fields }) => [message, fields.pid]),
      ),
      [[["one", pid]], [["two", pid]], [[`Process with pid ${pid} ended`, pid]]],
    );
    assert.ok(Math.abs(Date.parse(entries.at(-1)?.timestamp ?? "") - Date.now()) < 30_000);

    const ticking = await sandbox.commands.run("n=0; while :; do n=$((n+1)); echo tick $n; sleep 0.05; done", {
      background: true,
      timeoutMs: 0,
    });
    await until("some ticks", () => ticking.stdout.includes("tick 5"));
    ticking.wait().catch(() => {});
    await sandbox.pause();
    const paused = await logsOf(await sharedServer(), sandbox.sandboxId);
    const said = paused.map(({ message }) => message);
    assert.ok(said.includes("tick 5"), said.join("\n"));
    await Sandbox.connect(sandbox.sandboxId);
    await until(
      "ticks after the pause",
      async () => (await logsOf(await sharedServer(), sandbox.sandboxId)).length > paused.length + 5,
    );
    await Sandbox.kill(sandbox.sandboxId);
    const ended = await logsOf(await sharedServer(), sandbox.sandboxId);
    assert.deepEqual(ended.slice(0, paused.length), paused);
    const ticks = ended.flatMap(({ message }) => /^tick (\d+)$/.exec(message)?.[1] ?? []).map(Number);
    assert.deepEqual(
      ticks,
      Array.from(ticks, (_, at) => at + 1),
      "a tick is missing, or there twice",
    );
    assert.equal(ended.filter(({ fields }) => fields.event_type === "agent_ready").length, 2);
  });

  it("are each sandbox's own after a fork", async () => {
    await using sandbox = await newSandbox();
    await sandbox.commands.run("echo the original");
    const [copy] = await sandbox.fork();
    assert.ok(copy instanceof Sandbox);
    try {
      await copy.commands.run("echo the copy");
      const said = await messagesOf(await sharedServer(), copy.sandboxId);
      assert.ok(said.includes("the copy") && !said.includes("the original"), said.join("\n"));
      assert.ok(!(await messagesOf(await sharedServer(), sandbox.sandboxId)).includes("the copy"));
    } finally {
      await copy.kill();
    }
  });

  it("of a program that writes without end stay small, and say what is missing", async () => {
    await using sandbox = await newSandbox();
    const { stdout } = await sandbox.commands.run("seq 1 400000 | tee /dev/null", { timeoutMs: 60_000 });
    assert.ok(stdout.endsWith("\n400000\n"));
    const entries = await logsOf(await sharedServer(), sandbox.sandboxId);
    assert.ok(entries.length === 1000 && entries[20]?.fields.event_type === "stdout", `${entries.length} entries`);
    const { body } = await call<{ logs: LogEntry[] }>(
      await sharedServer(),
      "GET",
      `/v2/sandboxes/${sandbox.sandboxId}/logs?level=warn`,
    );
    assert.ok(
      body.logs.some(({ fields }) => fields.event_type === "log_gap"),
      JSON.stringify(body),
    );
  });
});

describe("E2B's own CLI", { timeout: 240_000 }, () => {
  it("prints metrics and logs, follows logs to the end of the sandbox, and reads those of an ended one", async () => {
    await using sandbox = await newSandbox();
    const id = sandbox.sandboxId;
    await sandbox.commands.run("seq 1 2000");
    await reading(sandbox, "a reading", () => true);
    const metrics = await e2b(["sandbox", "metrics", id]);
    assert.deepEqual([metrics.code, metrics.stderr], [0, ""]);
    assert.match(metrics.stdout, /CPU: +[\d.]+% \/ +\d+ Cores? .*Memory: +\d+ \/ \d+ +MiB .*Disk: +\d+ \/ \d+ +MiB/);
    const json = await e2b(["sandbox", "metrics", "--format", "json", id]);
    assert.ok(JSON.parse(json.stdout.trim().split("\n")[0] ?? "").memTotal > 0, json.stdout);

    let followed = "";
    const following = e2b(["sandbox", "logs", "--follow", "--format", "json", id], {
      onStdout: (all) => {
        followed = all;
      },
    });
    await until("what was there before", () => followed.includes('"message":"2000"'));
    for (const message of ["while following", "the last"]) {
      await sandbox.commands.run(`echo ${message}`);
      await until(message, () => followed.includes(`"message":"${message}"`));
    }
    await sandbox.kill();
    const { code, stdout, stderr } = await following;
    assert.equal(code, 0, stderr);
    const lines = stdout
      .trim()
      .split("\n")
      .map((line) => JSON.parse(line) as { logger: string; message: string; level: string });
    const numbers = lines.flatMap(({ message }) => (/^\d+$/.test(message) ? [Number(message)] : []));
    assert.deepEqual(
      numbers,
      Array.from({ length: 2000 }, (_, at) => at + 1),
    );
    for (const message of ["while following", "the last"])
      assert.equal(lines.filter((line) => line.message === message && line.logger === "process").length, 1, message);

    const pretty = await e2b(["sandbox", "logs", id]);
    assert.deepEqual([pretty.code, pretty.stderr], [0, ""]);
    assert.match(pretty.stdout, /\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z\] +INFO/);
    assert.match(pretty.stdout, /command: .*seq 1 2000/);
  });
});
