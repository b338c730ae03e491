import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { MIB } from "#domain";
import { Cgroups } from "./cgroup/cgroups.ts";
import { V1Hierarchies } from "./cgroup/v1.ts";
import { V2Hierarchy } from "./cgroup/v2.ts";
import { MemoryLimit, ROOM_BYTES } from "./memory-limit.ts";

const LIMIT_BYTES = 256 * MIB;

for (const version of ["v1", "v2"] as const) {
  test(`${version}: after a kill the limit is higher until the memory is back, and so it is taken over from another server`, (t) => {
    const root = mkdtempSync(join(tmpdir(), "aenv-limit-"));
    try {
      const dir = join(root, "memory/m");
      mkdirSync(dir, { recursive: true });
      let [cacheBytes, swappedBytes] = [0, 0];
      let nowMs = 0;
      t.mock.method(performance, "now", () => nowMs);
      const set = (usedBytes: number, kills: number): void => {
        writeFileSync(join(dir, "memory.stat"), `anon 1\nactive_file ${cacheBytes}\ntotal_active_file ${cacheBytes}\n`);
        for (const name of ["memory.current", "memory.usage_in_bytes"])
          writeFileSync(join(dir, name), `${usedBytes + cacheBytes - swappedBytes}\n`);
        writeFileSync(join(dir, "memory.swap.current"), `${swappedBytes}\n`);
        for (const name of ["memory.events", "memory.oom_control"])
          writeFileSync(join(dir, name), `oom_kill ${kills}\n`);
      };
      const limits = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max"];
      for (const name of limits) writeFileSync(join(dir, name), String(LIMIT_BYTES + ROOM_BYTES));
      for (const name of ["memory.swap.max", "memory.reclaim"]) writeFileSync(join(dir, name), "0");
      const cgroups = new Cgroups(
        version === "v2" ? new V2Hierarchy(root) : new V1Hierarchies(v1Mounts(root)),
        "/memory",
      );
      let machine = new MemoryLimit(cgroups, "m", LIMIT_BYTES);
      const number = (name: string): number => Number(readFileSync(join(dir, name), "utf8"));
      const room = (usedBytes: number, kills: number): number[] => {
        set(usedBytes, kills);
        assert.deepEqual(machine.read(), { usedBytes, oomKills: kills });
        const kept = version === "v2" ? limits.slice(2) : limits.slice(0, 2);
        return [...new Set(kept.map((name) => number(name) + swappedBytes - LIMIT_BYTES))];
      };
      const full = LIMIT_BYTES - ROOM_BYTES + 1;
      // What it finds: kills that are over, and no memory yet; then there is some.
      assert.deepEqual([room(full, 3), room(full - 1, 3), room(LIMIT_BYTES, 3)], [[ROOM_BYTES], [0], [0]]);
      assert.deepEqual([room(LIMIT_BYTES, 4), room(full, 4), room(full - 1, 4)], [[ROOM_BYTES], [ROOM_BYTES], [0]]);
      // It was back before anybody looked.
      assert.deepEqual([room(0, 5), room(0, 5)], [[ROOM_BYTES], [0]]);
      // No look has found memory yet, and the limit is not the higher one.
      machine = new MemoryLimit(cgroups, "m", LIMIT_BYTES);
      assert.deepEqual([room(full, 0), room(full, 1)], [[0], [ROOM_BYTES]]);
      if (version === "v1") return;
      // A lower limit is no reason for the kernel to end a process: first it is to drop file cache.
      cacheBytes = 2 * ROOM_BYTES;
      assert.deepEqual(room(full - 1, 1), [ROOM_BYTES]);
      assert.equal(number("memory.reclaim"), ROOM_BYTES);
      // It is not asked at each look.
      cacheBytes = ROOM_BYTES;
      nowMs += 9_900;
      assert.deepEqual(room(full - 1, 1), [ROOM_BYTES]);
      nowMs += 100;
      assert.deepEqual(room(full - 1, 1), [0]);
      // Room is given whatever is in use, and memory and swap share it.
      [cacheBytes, swappedBytes] = [2 * ROOM_BYTES, 8 * MIB];
      assert.deepEqual(room(full, 2), [ROOM_BYTES]);
      cacheBytes = ROOM_BYTES;
      assert.deepEqual([room(full - 1, 2), number("memory.swap.max")], [[0], swappedBytes]);
    } finally {
      rmSync(root, { recursive: true });
    }
  });
}

function v1Mounts(root: string): ReadonlyMap<string, string> {
  return new Map(["memory", "cpu", "cpuacct", "pids"].map((name) => [name, root]));
}
