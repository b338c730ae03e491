import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { type ProcessWatcher, RunnerLostError } from "#lib/run";
import { Cgroups } from "./cgroup/index.ts";
import type { CgroupVersion } from "./cgroup/limits.ts";
import type { CheckpointReport, MachineExit } from "./driver.ts";
import { ProcessMachine, undoStart } from "./process-machine.ts";

const remove = async (): Promise<void> => {};

test("a start that a full disk has failed says so, whoever met it: our own call or the runtime (RES-06)", async () => {
  const ours = Object.assign(new Error("ENOSPC: no space left on device, mkdir"), { code: "ENOSPC" });
  const theirs = "creating upper: write /x: no space left on device";
  const starts = [
    { cause: ours },
    { cause: new Error("wrapped", { cause: ours }) },
    { cause: new Error("runsc exited with 128"), said: theirs },
  ];
  for (const start of starts) {
    const error = await undoStart("i0-0001", { ...start, remove });
    assert.equal(error.kind, "exhausted");
    assert.match(error.message, /disk is full/);
  }
  const other = await undoStart("i0-0001", {
    cause: new Error("runsc exited with 128"),
    said: "no such image",
    remove,
  });
  assert.equal(other.kind, "internal");
  assert.match(other.message, /no such image/);
});

test("a start whose runner died, and which was undone, can be tried again", async () => {
  const cause = new RunnerLostError("keeper: socket hang up");
  assert.equal((await undoStart("i0-0001", { cause, remove })).kind, "unavailable");
  // What could not be removed is still there: nobody is told to try again.
  const stays = async (): Promise<void> => {
    throw new Error("processes do not end");
  };
  assert.equal((await undoStart("i0-0001", { cause, remove: stays })).kind, "internal");
});

/** Whose removal is not over. */
class Lingering extends ProcessMachine {
  constructor(pid: number, cgroups: Cgroups) {
    const watcher: ProcessWatcher = { exited: () => new Promise(() => {}) };
    super({ id: "i0-0001", pid, version: "1", cgroup: "i0-0001", paused: false }, cgroups, watcher);
  }

  async checkpoint(): Promise<CheckpointReport> {
    return {};
  }

  protected async pauseNow(): Promise<void> {}

  protected async resumeNow(): Promise<void> {}

  protected remove(): Promise<void> {
    return new Promise(() => {});
  }

  protected describeEnd(): Omit<MachineExit, "atMs"> {
    return { reason: "crashed" };
  }
}

test("what runs in a machine is killed by the call of stop, however long its removal takes", async () => {
  const dir = mkdtempSync(join(tmpdir(), "aenv-machine-"));
  const children = [spawn("sleep", ["600"]), spawn("sleep", ["600"])];
  try {
    const pids = children.map(({ pid = 0 }) => pid);
    writeFileSync(join(dir, "cgroup.procs"), pids.map((pid) => `${pid}\n`).join(""));
    const version = { dirs: () => [dir] } as Partial<CgroupVersion> as CgroupVersion;
    const ends = children.map((child) => once(child, "exit"));
    void new Lingering(pids[0] ?? 0, new Cgroups(version, "/aenv/0")).stop();
    for (const [, signal] of await Promise.all(ends)) assert.equal(signal, "SIGKILL");
  } finally {
    for (const child of children) child.kill("SIGKILL");
    rmSync(dir, { recursive: true, force: true });
  }
});
