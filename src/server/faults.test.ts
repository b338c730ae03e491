import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { chmodSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, test } from "node:test";
import { armFaults, fault } from "#lib/fault";
import { createLogger, silentLogger } from "#lib/log";
import { armOrderedFaults, type FaultOrder } from "./faults.ts";

let dir: string;

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "aenv-faults-test-"));
});
afterEach(() => {
  armFaults(undefined);
  delete process.env.AENV_FAULTS;
  rmSync(dir, { recursive: true, force: true });
});

function arm(logger = silentLogger): void {
  process.env.AENV_FAULTS = dir;
  armOrderedFaults({ dataDir: dir, runscPath: join(dir, "runsc") }, logger);
}

function order(...orders: FaultOrder[]): void {
  writeFileSync(join(dir, "orders.json"), JSON.stringify(orders));
}

/** A process with a name and arguments as runsc has them. */
async function program(argv0: string): Promise<ChildProcess> {
  const child = spawn("/bin/sh", ["-c", "read x", "--root=/r", "i0-0001"], { argv0 });
  await once(child, "spawn");
  return child;
}

function lastFired(): { readonly killed: number } {
  return JSON.parse(readFileSync(join(dir, "fired"), "utf8").trim().split("\n").at(-1) ?? "");
}

async function thrownAt(point: FaultOrder["point"]): Promise<string | undefined> {
  try {
    await fault(point, "i0-0001");
    return undefined;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code;
  }
}

describe("ordered faults", () => {
  test("are armed by the environment alone, and said loudly", async () => {
    const lines: string[] = [];
    const logger = createLogger("error", (line) => lines.push(line));
    armOrderedFaults({ dataDir: dir, runscPath: join(dir, "runsc") }, logger);
    assert.equal(fault("pause.captured"), undefined);
    assert.deepEqual(lines, []);
    arm(logger);
    assert.match(lines.join(), /FAULTS ARE ARMED/);
  });

  test("are not armed by a folder that others can write to", () => {
    chmodSync(dir, 0o777);
    assert.throws(() => arm(), /AENV_FAULTS: .* can be written to by others/);
    assert.equal(fault("pause.captured"), undefined);
  });

  test("come due once each, in their order, after so many passes", async () => {
    arm();
    assert.equal(await thrownAt("pause.captured"), undefined, "without orders nothing happens");
    order({ point: "pause.captured", error: "ENOSPC", after: 1 }, { point: "pause.frozen", error: "ENOSPC" });
    assert.equal(await thrownAt("pause.frozen"), undefined, "it is not its turn");
    assert.equal(await thrownAt("pause.captured"), undefined, "that was the first pass");
    assert.equal(await thrownAt("pause.captured"), "ENOSPC");
    assert.equal(await thrownAt("pause.captured"), undefined);
    assert.equal(await thrownAt("pause.frozen"), "ENOSPC");
    assert.equal(await thrownAt("pause.frozen"), undefined);
    const fired = readFileSync(join(dir, "fired"), "utf8").trim().split("\n");
    assert.deepEqual(
      fired.map((line) => JSON.parse(line).machineId),
      ["i0-0001", "i0-0001"],
    );
    assert.equal(readFileSync(join(dir, "passed"), "utf8"), "pause.captured\npause.frozen\n");
  });

  test("kill a service by its pid file, and return when it is gone", async () => {
    arm();
    const victim = spawn("sleep", ["1000"]);
    await once(victim, "spawn");
    const ended = once(victim, "exit");
    mkdirSync(join(dir, "run"));
    writeFileSync(join(dir, "run", "blobd.pid"), String(victim.pid));
    order({ point: "pause.captured", kill: ["blobd"] });
    await fault("pause.captured");
    const [, signal] = await ended;
    assert.equal(signal, "SIGKILL");
  });

  test("end a machine by its gofer or its agent, and return when it has ended", async () => {
    arm();
    for (const victim of ["gofer", "agent"] as const) {
      const [runtime, gofer] = [await program("runsc-sandbox"), await program("runsc-gofer")];
      writeFileSync(join(dir, "runsc"), `#!/bin/sh\necho "$@" >${dir}/asked; kill -9 ${runtime.pid}`, { mode: 0o755 });
      void once(gofer, "exit").then(() => runtime.kill("SIGKILL"));
      const ended = once(runtime, "exit");
      order({ point: "pause.captured", kill: [victim] });
      await fault("pause.captured", "i0-0001");
      await ended;
      assert.equal(lastFired().killed, 1);
      gofer.kill("SIGKILL");
    }
    assert.equal(readFileSync(join(dir, "asked"), "utf8"), "--root=/r kill i0-0001 KILL\n");
  });

  test("kill the command that makes a machine or captures it, and not the machine", async () => {
    arm();
    const runtime = await program("runsc-sandbox");
    for (const path of ["/bin/runsc", "/bin/sentrysave"]) {
      const ended = once(await program(path), "exit");
      order({ point: "pause.captured", kill: ["command"] });
      await fault("pause.captured", "i0-0001");
      await ended;
      assert.equal(runtime.exitCode ?? runtime.signalCode, null);
    }
    runtime.kill("SIGKILL");
  });

  test("refuse a point that is none", async () => {
    arm();
    order({ point: "pause.nowhere" as FaultOrder["point"] });
    await assert.rejects(async () => await fault("pause.captured"), /no fault point pause.nowhere/);
  });
});
