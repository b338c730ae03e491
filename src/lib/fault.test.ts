import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { armFaults, FAULT_POINTS, fault } from "./fault.ts";

afterEach(() => armFaults(undefined));

describe("fault points", () => {
  test("do nothing unless they are armed", () => {
    assert.equal(fault("pause.captured", "machine"), undefined);
  });

  test("tell the handler where and of which machine, and throw what it throws", async () => {
    const passed: unknown[] = [];
    armFaults(async (point, machineId) => {
      passed.push([point, machineId]);
      throw new Error("as the test wants");
    });
    await assert.rejects(async () => await fault("pause.captured", "machine"), /as the test wants/);
    await assert.rejects(async () => await fault("recover.done"), /as the test wants/);
    assert.deepEqual(passed, [
      ["pause.captured", "machine"],
      ["recover.done", undefined],
    ]);
  });

  test("are all in the list, and all of the list are in the code", () => {
    const src = fileURLToPath(new URL("..", import.meta.url));
    const used = readdirSync(src, { recursive: true, encoding: "utf8" })
      .filter((name) => name.endsWith(".ts") && !name.endsWith(".test.ts"))
      .flatMap((name) => [...readFileSync(join(src, name), "utf8").matchAll(/await fault\("([^"]+)"/g)])
      .map(([, point]) => point ?? "");
    assert.deepEqual([...new Set(used)].sort(), [...FAULT_POINTS].sort());
  });
});
