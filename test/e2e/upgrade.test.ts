import assert from "node:assert/strict";
import { cpSync, mkdtempSync, readlinkSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Sandbox } from "e2b";
import { dataDir } from "../../scripts/setup/data-dir.ts";
import { startServer } from "../../scripts/setup/server.ts";
import { useServer } from "./sdk.ts";
import { startTestServer, until } from "./server.ts";
import type { TestConfig } from "./start.ts";

const LATE_MS = 1_000;

describe("an upgrade", { timeout: 180_000 }, () => {
  it("replaces every process of ours, the keeper too, while sandboxes run on", async () => {
    const server = await startTestServer();
    const programs = mkdtempSync(join(tmpdir(), "aenv-programs-"));
    try {
      useServer(server);
      const sandbox = await Sandbox.create("base", { timeoutMs: 120_000 });
      const counter = await sandbox.commands.run(
        "n=0; while :; do n=$((n+1)); echo $n > next; mv next count; sleep 0.05; done",
        {
          background: true,
          timeoutMs: 0,
        },
      );
      await until("the counter", () => sandbox.files.exists("count"));
      const before = ["keeper", "blobd", "aenvd", "edge"].map(server.pid);

      cpSync(server.config.binDir, programs, { recursive: true });
      const data = dataDir(server.dataDir);
      const newer = { ...server.config, binDir: programs, commit: "newer" };
      assert.equal(await startServer(data, newer), "replaced an older build");
      assert.equal(await startServer(data, newer), "already running");
      await until("the new pids", () =>
        ["keeper", "blobd", "aenvd", "edge"].every((name, at) => server.pid(name) !== before[at]),
      );
      assert.equal(readlinkSync(`/proc/${server.pid("keeper")}/exe`), join(programs, "keeper"));

      const version = (await (await fetch(`${server.url}/version`)).json()) as { commit: string };
      assert.equal(version.commit, "newer");
      const seen = Number(await sandbox.files.read("count"));
      await until("counting on", async () => Number(await sandbox.files.read("count")) > seen);
      assert.ok((await sandbox.commands.list()).some((one) => one.pid === counter.pid));
      await sandbox.kill();
    } finally {
      await server.stop();
      rmSync(programs, { recursive: true, force: true });
    }
  });

  it("of one setting is over when no process is left that does not have it", async () => {
    const server = await startTestServer();
    try {
      const before = server.pid("aenvd");
      const config: TestConfig = { ...server.config, idleAfterMs: 0 };
      // Who replaces it takes its time: until then the old one answers, as the same build.
      process.kill(server.pid("keeper"), "SIGSTOP");
      const started = startServer(dataDir(server.dataDir), config);
      try {
        assert.equal(await Promise.race([started, sleep(LATE_MS, "waits")]), "waits");
      } finally {
        process.kill(server.pid("keeper"), "SIGCONT");
      }
      await started;
      assert.notEqual(server.pid("aenvd"), before);
      useServer(server);
      await (await Sandbox.create("base")).kill();
    } finally {
      await server.stop();
    }
  });

  it("goes on where a keeper died in the middle of it, and its successor knows nothing of that", async () => {
    const server = await startTestServer();
    try {
      const before = server.pid("aenvd");
      const keeper = server.pid("keeper");
      process.kill(keeper, "SIGSTOP");
      const started = startServer(dataDir(server.dataDir), { ...server.config, idleAfterMs: 0 } as TestConfig);
      rmSync(join(server.dataDir, "run", "keeper.services.json"));
      process.kill(keeper, "SIGKILL");
      await started;
      assert.notEqual(server.pid("aenvd"), before);
    } finally {
      await server.stop();
    }
  });
});
