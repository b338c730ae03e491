import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, test } from "node:test";
import { GIB } from "#domain";
import { Cgroups } from "./cgroups.ts";
import { V1Hierarchies } from "./v1.ts";
import { V2Hierarchy } from "./v2.ts";

const RESOURCES = { vcpus: 1.5, memoryBytes: 1 * GIB + 100, diskBytes: 1 * GIB, pidsMax: 300 };

describe("cgroups", () => {
  let root: string;
  const read = (path: string) => readFileSync(join(root, path), "utf8");
  beforeEach(() => {
    root = mkdtempSync(join(tmpdir(), "aenv-cgroup-"));
  });
  afterEach(() => rmSync(root, { recursive: true }));

  test("version 2: controllers are handed down, and limits are in the machine's own group", async () => {
    const cgroups = new Cgroups(new V2Hierarchy(root), "/aenv/3");
    await cgroups.create("m", RESOURCES);
    for (const path of ["", "aenv", "aenv/3"])
      assert.equal(read(`${path}/cgroup.subtree_control`), "+cpu +memory +pids");
    assert.equal(read("aenv/3/m/memory.max"), String(1 * GIB));
    assert.equal(read("aenv/3/m/cpu.max"), "150000 100000");
    assert.equal(read("aenv/3/m/pids.max"), "300");
    assert.deepEqual(cgroups.list(), ["m"]);
    assert.equal(cgroups.path("m"), "/aenv/3/m");
  });

  test("version 2: statistics", () => {
    const cgroups = new Cgroups(new V2Hierarchy(root), "/aenv/3");
    mkdirSync(join(root, "aenv/3/m"), { recursive: true });
    const files = {
      "memory.current": "1000\n",
      "memory.stat": "anon 100\ninactive_file 300\nactive_file 50\n",
      "memory.events": "max 9\noom 3\noom_kill 2\noom_group_kill 0\n",
      "cpu.stat": "usage_usec 77\nuser_usec 7\n",
      "pids.current": "5\n",
      "pids.events": "max 4\n",
    };
    for (const [name, text] of Object.entries(files)) writeFileSync(join(root, "aenv/3/m", name), text);
    const expected = { memoryBytes: 700, cpuUsec: 77, pids: 5, oomKills: 2, pidsLimitHits: 4 };
    assert.deepEqual(cgroups.stats("m"), expected);
    assert.deepEqual(cgroups.memory("m", GIB), { usedBytes: 650, oomKills: 2 });
    assert.equal(cgroups.memory("gone", GIB), undefined);
  });

  test("version 2: swap is open to a group only while its memory is moved there", async () => {
    const dir = join(root, "aenv/3/m");
    mkdirSync(dir, { recursive: true });
    for (const name of ["memory.stat", "memory.events", "cpu.stat", "pids.events", "memory.reclaim"])
      writeFileSync(join(dir, name), "");
    writeFileSync(join(dir, "pids.current"), "1\n");
    writeFileSync(join(dir, "memory.current"), "8192\n");
    writeFileSync(join(dir, "memory.swap.max"), "0\n");
    await new Cgroups(new V2Hierarchy(root), "/aenv/3").reclaim("m");
    assert.equal(read("aenv/3/m/memory.reclaim"), "8192");
    assert.equal(read("aenv/3/m/memory.swap.max"), "0");
  });

  test("version 2: memory and what of it is in swap share one limit, while it goes there and comes back", async () => {
    const dir = join(root, "aenv/3/m");
    mkdirSync(dir, { recursive: true });
    for (const name of ["memory.stat", "memory.events", "cpu.stat", "pids.events", "memory.reclaim"])
      writeFileSync(join(dir, name), "");
    const set = (name: string, value: number) => writeFileSync(join(dir, name), `${value}\n`);
    const [limit, page] = [100 * 4096, 4096];
    for (const [name, value] of [
      ["pids.current", 1],
      ["memory.max", limit],
      ["memory.swap.max", 0],
    ] as const)
      set(name, value);
    const shares = () => ["memory.max", "memory.swap.max"].map((name) => Number(read(`aenv/3/m/${name}`)) / page);
    const cgroups = new Cgroups(new V2Hierarchy(root), "/aenv/3");
    // As the kernel leaves it.
    set("memory.current", 10 * page);
    set("memory.swap.current", 60 * page);
    await cgroups.reclaim("m");
    assert.equal(cgroups.memory("m", limit + 7)?.usedBytes, 70 * page);
    assert.deepEqual(shares(), [40, 60]);
    for (const swapped of [25, 0]) {
      set("memory.current", (70 - swapped) * page);
      set("memory.swap.current", swapped * page);
      assert.equal(cgroups.memory("m", limit)?.usedBytes, 70 * page);
      assert.deepEqual(shares(), [100 - swapped, swapped]);
    }
    // More may have gone than the limit, when it was looked at while memory was on its way; and swap may be open.
    set("memory.swap.current", 130 * page);
    writeFileSync(join(dir, "memory.swap.max"), "max\n");
    cgroups.memory("m", limit);
    assert.deepEqual(shares(), [0, 130]);
  });

  test("version 2: a limit is lowered where an older kernel cannot be asked for memory, and no file is made in a group that goes", () => {
    const dir = join(root, "aenv/3/m");
    mkdirSync(dir, { recursive: true });
    const cgroups = new Cgroups(new V2Hierarchy(root), "/aenv/3");
    writeFileSync(join(dir, "memory.current"), "8192\n");
    assert.equal(cgroups.limitMemory("m", GIB), false);
    assert.deepEqual(readdirSync(dir), ["memory.current"]);
    writeFileSync(join(dir, "memory.max"), "max\n");
    assert.deepEqual([cgroups.limitMemory("m", 4096), cgroups.limitMemory("m", 8192)], [false, true]);
    assert.equal(read("aenv/3/m/memory.max"), "8192");
  });

  test("version 1: the group is made once in each hierarchy, also where two controllers share one", () => {
    const mountinfo = ["memory", "cpu,cpuacct", "pids", "name=systemd"]
      .map((names, n) => `3${n} 24 0:3${n} / ${root}/${names} rw - cgroup cgroup rw,${names}`)
      .concat(`40 24 0:40 / ${root}/unified rw - cgroup2 cgroup2 rw`, "41 24 0:41 / /proc rw - proc proc rw")
      .join("\n");
    const hierarchies = V1Hierarchies.parse(mountinfo);
    hierarchies.make("/aenv/3/m");
    const expected = ["memory", "cpu,cpuacct", "pids", "name=systemd"].map((names) => `${root}/${names}/aenv/3/m`);
    assert.deepEqual(hierarchies.dirs("/aenv/3/m"), expected);
    hierarchies.fill("/aenv/3/m", { memoryBytes: 4096, cpuQuotaUsec: 50_000, pidsMax: 7 });
    assert.equal(read("memory/aenv/3/m/memory.limit_in_bytes"), "4096");
    assert.equal(read("cpu,cpuacct/aenv/3/m/cpu.cfs_quota_us"), "50000");
    assert.equal(read("pids/aenv/3/m/pids.max"), "7");
  });

  test("version 1: a machine's processes are found and killed whichever hierarchy is mounted first", async () => {
    const mountinfo = ["misc", "memory", "cpu,cpuacct", "pids"]
      .map((names, n) => `3${n} 24 0:3${n} / ${root}/${names} rw - cgroup cgroup rw,${names}`)
      .join("\n");
    const cgroups = new Cgroups(V1Hierarchies.parse(mountinfo), "/aenv/3");
    await cgroups.make("m");
    assert.deepEqual(cgroups.processes("m"), []);
    const child = spawn("sleep", ["60"]);
    const ended = once(child, "exit");
    for (const names of ["memory", "cpu,cpuacct", "pids"])
      writeFileSync(join(root, names, "aenv/3/m/cgroup.procs"), `${child.pid}\n`);
    writeFileSync(join(root, "misc/aenv/3/m/cgroup.procs"), "");
    assert.deepEqual(cgroups.processes("m"), [child.pid]);
    assert.equal(cgroups.kill("m"), 1);
    assert.deepEqual(await ended, [null, "SIGKILL"]);
  });

  test("version 1: a controller that is not mounted is named", () => {
    const mountinfo = "31 24 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory";
    assert.throws(() => V1Hierarchies.parse(mountinfo), /cpu, cpuacct, pids are not mounted/);
  });

  test("a limit that the kernel did not take is an error, and leaves no group", async () => {
    const version = new V2Hierarchy(root);
    const deaf = {
      dirs: (path: string) => version.dirs(path),
      make: (path: string) => version.make(path),
      stats: (path: string) => version.stats(path),
      memory: (path: string) => version.memory(path),
      reclaim: (path: string) => version.reclaim(path),
      share: (path: string, bytes: number) => version.share(path, bytes),
      limitMemory: (path: string, bytes: number) => version.limitMemory(path, bytes),
      fill: () => [{ file: "memory.max", wanted: "4096", found: "max" }],
    };
    const cgroups = new Cgroups(deaf, "/aenv/3");
    await assert.rejects(cgroups.create("m", RESOURCES), /memory.max holds "max" after "4096" was written/);
    assert.deepEqual(cgroups.list(), []);
  });
});
