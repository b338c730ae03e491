import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import {
  closeSync,
  copyFileSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, test } from "node:test";
import { DEFAULT_RESOURCES, GIB, MIB } from "#domain";
import { localRunner } from "#lib/spawn";
import { Bundle } from "./bundle.ts";
import { allTasksStopped } from "./control.ts";
import { laterScore, maps } from "./oom.ts";
import { parseVersion } from "./runsc.ts";
import { SentrySave } from "./sentry-save.ts";
import { maxTasks } from "./spec.ts";

describe("runsc's version", () => {
  test("is what its first line says", () => {
    assert.equal(
      parseVersion("runsc version v0.0.0-20260905035102-160fafc42237\nspec: 1.2.1\n", "/r"),
      "v0.0.0-20260905035102-160fafc42237",
    );
  });

  test("is refused when the build did not put it in", () => {
    assert.throws(() => parseVersion("runsc version VERSION_MISSING\nspec: 1.2.1\n", "/r"), {
      kind: "unavailable",
      hint: /ldflags/,
    });
    assert.throws(() => parseVersion("", "/r"), { kind: "unavailable" });
  });
});

test("what is to be durable next is written out while it grows, what is for now alone is not", async () => {
  const started: (readonly string[])[] = [];
  const nothing = new Uint8Array();
  const saver = new SentrySave("/bin/true", {
    run(argv) {
      started.push(argv);
      return Promise.resolve({ exitCode: 0, signal: 0, stdout: nothing, stderr: nothing, timedOut: false });
    },
  });
  await saver.save("/s", "/d", { durable: true });
  await saver.save("/s", "/d", { capture: "disk" });
  const named = ["/bin/true", "-socket=/s", "-dir=/d"];
  assert.deepEqual(started, [
    [...named, "-write-out"],
    [...named, "-disk"],
  ]);
  assert.throws(() => new SentrySave("/no/sentrysave", localRunner()), { kind: "unavailable", hint: /npm run up/ });
});

describe("whether a sandbox is paused", () => {
  const TASK = "gvisor.dev/gvisor/pkg/sentry/kernel.(*Task).run(0xc000, 0x1)\n\ttask_run.go:100";
  const STOPPED = `sync.(*Cond).Wait(0xc0)\ngvisor.dev/gvisor/pkg/sentry/kernel.(*Task).doStop(0xc000)\n${TASK}`;
  const OTHER = "goroutine 1 [running]:\nmain.main()";

  test("all tasks have to be stopped: one alone may be for its own reasons", () => {
    assert.equal(allTasksStopped([OTHER, STOPPED, STOPPED].join("\n\n")), true);
    assert.equal(allTasksStopped([OTHER, STOPPED, TASK].join("\n\n")), false);
    assert.equal(allTasksStopped(OTHER), false);
  });
});

describe("tasks a user may have", () => {
  test("memory decides, then the host's limit of processes", () => {
    assert.equal(maxTasks({ resources: { ...DEFAULT_RESOURCES, memoryBytes: 1 * GIB } }), 1024);
    assert.equal(maxTasks({ resources: { ...DEFAULT_RESOURCES, memoryBytes: 128 * MIB } }), 256);
    assert.equal(maxTasks({ resources: { ...DEFAULT_RESOURCES, memoryBytes: 64 * GIB } }), 1280);
  });
});

describe("the end of a machine's log", () => {
  const withLog = (write: (file: string) => void): string | undefined => {
    const dir = mkdtempSync(join(tmpdir(), "aenv-log-"));
    try {
      const bundle = new Bundle(dir, "m");
      mkdirSync(bundle.dir);
      write(bundle.logFile);
      return bundle.logTail();
    } finally {
      rmSync(dir, { recursive: true });
    }
  };

  test("is what runsc's errors say, one a line", () => {
    const logged = ['no "this"', "nor\nthat"].map((msg) => JSON.stringify({ msg, level: "error", time: "2026" }));
    assert.equal(
      withLog((file) => writeFileSync(file, logged.join(""))),
      'no "this"\nnor\nthat',
    );
  });

  test("is the log's own text where that is something else; nothing when there is none", () => {
    assert.equal(
      withLog((file) => writeFileSync(file, "panic: oh\n")),
      "panic: oh",
    );
    assert.equal(
      withLog((file) => writeFileSync(file, "")),
      undefined,
    );
    assert.equal(
      withLog(() => {}),
      undefined,
    );
  });

  test("is all that is read of it, however long it is", () => {
    const said = withLog((file) => {
      // Larger than what can be read into memory at all.
      closeSync(openSync(file, "w"));
      truncateSync(file, 8 * GIB);
      writeFileSync(file, "the end", { flag: "a" });
    });
    assert.ok(said?.endsWith("the end") && said.length <= 8 * 1024, `${said?.length}`);
  });
});

test("an agent is told from another program of its name by the file itself", {
  skip: process.getuid?.() !== 0 && "needs root",
}, async () => {
  const dir = mkdtempSync(join(tmpdir(), "aenv-agent-"));
  try {
    const [agent, other] = ["a", "b"].map((name) => join(dir, name, "envd")) as [string, string];
    for (const path of [agent, other]) {
      mkdirSync(join(path, ".."));
      copyFileSync("/bin/sleep", path);
    }
    const child = spawn(agent, ["60"]);
    await once(child, "spawn");
    assert.equal(maps(child.pid ?? 0, statSync(agent)), true);
    assert.equal(maps(child.pid ?? 0, statSync(other)), false);
    child.kill();
    await once(child, "exit");
  } finally {
    rmSync(dir, { recursive: true });
  }
});

test("what the sandbox has mapped beyond its limit does not make it the kernel's first choice", () => {
  for (const mib of [128, 256, 1024, 16_384]) {
    const pages = (mib * MIB) / 4096;
    const score = laterScore(mib * MIB);
    assert.ok((1000 - score) * Math.floor(pages / 1000) > pages + 10_000, `${score} of ${mib} MiB`);
    // The services' own.
    assert.ok(score > -900);
  }
});
