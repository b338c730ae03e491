import assert from "node:assert/strict";
import { test } from "node:test";
import { RunnerLostError } from "#lib/run";
import { undoStart } from "./process-machine.ts";

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
