import assert from "node:assert/strict";
import { test } from "node:test";
import type { VirtualizationFacts } from "#driver";
import { checkFacts } from "./checks.ts";
import type { HostFacts } from "./facts.ts";
import { cgroupFacts, droppingChains, foreignRoutes, isListening, openFilesLimit } from "./parse.ts";
import { exitCodeFor, formatChecks } from "./report.ts";

const GIB = 1024 ** 3;

const good: HostFacts = {
  kernel: "6.12.3-amd64",
  arch: "x64",
  nodeVersion: "24.22.3",
  uid: 0,
  cgroup: { version: "v2", controllers: ["cpu", "io", "memory", "pids"] },
  programs: { ip: "ip 6.1", nft: "nft 1.0", mount: "mount 2.38", tc: "tc 6.1", mke2fs: "mke2fs 1.47" },
  namespaces: { worked: true },
  erofs: { worked: true },
  runsc: { path: "/bin/runsc", version: "v1", sandbox: { worked: true } },
  seccompActions: ["trap", "user_notif", "allow"],
  ptraceScope: 1,
  virtualization: virtualization("auto", "absent"),
  firecracker: { firecracker: undefined, jailer: undefined },
  tun: true,
  fuse: true,
  ipForward: false,
  droppingChains: [],
  foreignRoutes: [],
  dataDir: "/var/lib/aenv",
  diskFreeBytes: 100 * GIB,
  memoryAvailableBytes: 8 * GIB,
  openFilesLimit: 1_048_576,
  ports: [{ number: 8000, taken: false, byUs: false }],
  clockSynchronised: true,
  nowMs: Date.UTC(2026, 10, 30),
};

/** Nothing of Firecracker is installed, unless `isThere` says so. */
function virtualization(
  wanted: VirtualizationFacts["wanted"],
  state: VirtualizationFacts["kvm"]["state"],
  isThere = false,
): VirtualizationFacts {
  const file = (path: string) => ({ path, isThere });
  return {
    wanted,
    kvm: { state, why: "evidence" },
    files: {
      firecrackerPath: file("/lib/firecracker"),
      jailerPath: file("/lib/jailer"),
      guestKernelPath: file("/lib/vmlinux"),
      guestInitrdPath: file("/lib/initrd"),
      pvmKernelPath: { path: null, isThere: false },
    },
  };
}

function statuses(facts: Partial<HostFacts>): Record<string, string> {
  const notOk = checkFacts({ ...good, ...facts }).filter(({ status }) => status !== "ok");
  return Object.fromEntries(notOk.map(({ id, status }) => [id, status]));
}

test("a good host, also one without KVM, has nothing to fix", () => {
  assert.deepEqual(statuses({}), {});
  assert.equal(exitCodeFor(checkFacts(good)), 0);
});

test("what keeps sandboxes from running fails, what limits them warns", () => {
  assert.deepEqual(statuses({ kernel: "6.7.12" }), { kernel: "fail" });
  assert.deepEqual(statuses({ kernel: "7.0.0-rc1" }), {});
  assert.deepEqual(statuses({ uid: 1000 }), { root: "fail" });
  assert.deepEqual(statuses({ cgroup: { version: "v1", controllers: ["cpu", "memory"] } }), { cgroup: "fail" });
  assert.deepEqual(statuses({ programs: { ...good.programs, nft: undefined } }), { programs: "fail" });
  assert.deepEqual(statuses({ ptraceScope: 3 }), { ptrace: "fail" });
  assert.deepEqual(statuses({ seccompActions: ["trap"] }), { seccomp: "fail" });
  assert.deepEqual(statuses({ diskFreeBytes: 5 * GIB, memoryAvailableBytes: GIB }), { disk: "warn", memory: "warn" });
  assert.deepEqual(statuses({ diskFreeBytes: GIB }), { disk: "fail" });
  assert.deepEqual(statuses({ nowMs: 0 }), { clock: "fail" });
  assert.deepEqual(statuses({ fuse: false, clockSynchronised: false }), { fuse: "warn", clock: "warn" });
});

function found(facts: Partial<HostFacts>): Record<string, string> {
  return Object.fromEntries(checkFacts({ ...good, ...facts }).map(({ id, found }) => [id, found]));
}

test("what /dev/kvm runs is said, and is no fault of a host that gVisor will do for", () => {
  assert.equal(found({}).kvm, "there is no /dev/kvm (evidence)");
  assert.equal(found({}).virtualization, "gVisor, because there is no /dev/kvm");
  assert.equal("firecracker" in found({}), false);
  assert.deepEqual(statuses({ virtualization: virtualization("auto", "pvm") }), {});
  assert.equal(
    found({ virtualization: virtualization("auto", "pvm") }).kvm,
    "/dev/kvm runs PVM guests only (evidence)",
  );
  assert.deepEqual(statuses({ virtualization: virtualization("auto", "not-permitted") }), { kvm: "warn" });
  assert.deepEqual(statuses({ virtualization: virtualization("gvisor", "broken") }), {});
});

test("Firecracker's parts are looked at where it would be chosen, and missed as much as it is wanted", () => {
  const all = { firecracker: { firecracker: "Firecracker v1.12.1", jailer: "Jailer v1.12.1" } };
  const installed = { ...all, virtualization: virtualization("auto", "hardware", true) };
  assert.deepEqual(statuses(installed), {});
  assert.equal(found(installed).firecracker, "Firecracker v1.12.1 at /lib/firecracker");
  assert.match(found(installed).virtualization ?? "", /^Firecracker, because/);
  assert.deepEqual(statuses({ ...installed, firecracker: { ...all.firecracker, jailer: "Jailer v1.11.0" } }), {
    jailer: "warn",
  });
  assert.deepEqual(statuses({ ...installed, tun: false }), { tun: "warn" });

  assert.deepEqual(statuses({ virtualization: virtualization("auto", "hardware") }), {
    firecracker: "warn",
    jailer: "warn",
    "guest-kernel": "warn",
  });
  const missing = { firecracker: "fail", jailer: "fail", "guest-kernel": "fail", virtualization: "fail" };
  assert.deepEqual(statuses({ virtualization: virtualization("kvm", "hardware") }), missing);
  assert.deepEqual(statuses({ ...all, virtualization: virtualization("kvm", "pvm", true) }), {
    virtualization: "fail",
  });
  assert.match(
    found({ virtualization: virtualization("pvm", "pvm", true) })["guest-kernel"] ?? "",
    /pvmKernelPath is not/,
  );
});

test("what only gVisor needs stops no host that runs Firecracker", () => {
  const withoutGvisor = { ptraceScope: 3, runsc: { ...good.runsc, version: undefined } };
  assert.deepEqual(statuses(withoutGvisor), { ptrace: "fail", runsc: "fail" });
  const firecracker = { firecracker: "Firecracker v1.12.1", jailer: "Jailer v1.12.1" };
  assert.deepEqual(
    statuses({ ...withoutGvisor, firecracker, virtualization: virtualization("kvm", "hardware", true) }),
    {
      ptrace: "warn",
      runsc: "warn",
    },
  );
});

test("a port taken by our own edge is fine, by another program not", () => {
  assert.deepEqual(statuses({ ports: [{ number: 8000, taken: true, byUs: true }] }), {});
  assert.deepEqual(statuses({ ports: [{ number: 8000, taken: true, byUs: false }] }), { port: "warn" });
});

test("the table names the fix, and one failure makes the exit code 1", () => {
  const checks = checkFacts({ ...good, namespaces: { worked: false, reason: "ip exited with 2" } });
  const table = formatChecks(checks);
  assert.match(table, /FAIL {2}namespaces +ip exited with 2\n +→ install iproute2 and nftables/);
  assert.equal(exitCodeFor(checks), 1);
});

test("controllers are read from both versions of cgroups", () => {
  const v1 =
    "30 24 0:26 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n31 24 0:27 / /x rw - cgroup cgroup rw,pids\n";
  assert.deepEqual(cgroupFacts(v1, ""), { version: "v1", controllers: ["cpu", "cpuacct", "pids"] });
  assert.deepEqual(cgroupFacts("", "cpuset cpu io memory pids\n").version, "v2");
  assert.deepEqual(cgroupFacts("24 1 0:5 / / rw - ext4 /dev/vda rw\n", ""), { version: "none", controllers: [] });
});

test("firewalls and routes of others are found, ours and broken output are not", () => {
  const chain = (table: string, policy: string): object => ({
    chain: { family: "ip", table, name: "FORWARD", hook: "forward", policy },
  });
  const ruleset = JSON.stringify({
    nftables: [{ metainfo: {} }, chain("filter", "drop"), chain("ae0", "drop"), chain("x", "accept")],
  });
  assert.deepEqual(droppingChains(ruleset), ["ip filter FORWARD"]);
  assert.deepEqual(droppingChains("not json"), []);
  const routes = [
    { dst: "default", dev: "eth0" },
    { dst: "198.18.4.0/24", dev: "tun0" },
    { dst: "198.19.0.2", dev: "ae3s1" },
    { dst: "198.18.0.0/21" },
    { dst: "198.18.0.1", dev: "lo" },
  ];
  assert.deepEqual(foreignRoutes(JSON.stringify(routes)), ["198.18.4.0/24 on tun0"]);
});

test("listeners and limits are read from /proc", () => {
  const line = "   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1\n";
  assert.equal(isListening(line, 8000), true);
  assert.equal(isListening(line, 8001), false);
  assert.equal(isListening(line.replace(" 0A ", " 01 "), 8000), false);
  assert.equal(openFilesLimit("Max open files            1024                 524288               files\n"), 524_288);
});
