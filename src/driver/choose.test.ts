import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { AenvError } from "#domain";
import { chooseDriver, type FirecrackerFiles, type FirecrackerPaths, type Virtualization } from "./choose.ts";
import { cpuFlagOf, judgeKvm, type KvmEvidence, type KvmState, parseProbe } from "./kvm.ts";

const PATHS: FirecrackerPaths = {
  firecrackerPath: "/lib/firecracker",
  jailerPath: "/lib/jailer",
  guestKernelPath: "/lib/vmlinux",
  guestInitrdPath: "/lib/initrd",
  pvmKernelPath: "/lib/vmlinux-pvm",
};

/** All installed, but for the named ones: `false` is not there, `null` not set. */
function files(but: Partial<Record<keyof FirecrackerPaths, false | null>> = {}): FirecrackerFiles {
  const of = (field: keyof FirecrackerPaths) => ({
    path: but[field] === null ? null : PATHS[field],
    isThere: but[field] === undefined,
  });
  return {
    firecrackerPath: of("firecrackerPath"),
    jailerPath: of("jailerPath"),
    guestKernelPath: of("guestKernelPath"),
    guestInitrdPath: of("guestInitrdPath"),
    pvmKernelPath: of("pvmKernelPath"),
  };
}

/** `gvisor`, `firecracker kvm`, `firecracker pvm`, and why. */
function choose(wanted: Virtualization, state: KvmState, present = files()): [string, string] {
  const choice = chooseDriver({ wanted, kvm: { state, why: "evidence" }, files: present });
  return [choice.driver === "gvisor" ? "gvisor" : `firecracker ${choice.kernel}`, choice.why];
}

function refusal(wanted: Virtualization, state: KvmState, present = files()): string {
  try {
    choose(wanted, state, present);
  } catch (error) {
    assert.ok(error instanceof AenvError);
    assert.equal(error.kind, "unavailable");
    return `${error.message} → ${error.hint}`;
  }
  assert.fail("it was not refused");
}

describe("the choice of the driver", () => {
  it("auto: Firecracker where /dev/kvm runs ordinary guests and all it needs is there", () => {
    assert.deepEqual(choose("auto", "hardware"), [
      "firecracker kvm",
      "Firecracker, because /dev/kvm runs ordinary guests",
    ]);
    for (const field of ["firecrackerPath", "jailerPath", "guestKernelPath", "guestInitrdPath"] as const) {
      const [driver, why] = choose("auto", "hardware", files({ [field]: false }));
      assert.equal(driver, "gvisor");
      assert.equal(
        why,
        `gVisor: /dev/kvm runs ordinary guests, but ${field} names ${PATHS[field]}, which is not there`,
      );
    }
  });

  it("auto: else gVisor, and one line says why", () => {
    const expected: Readonly<Record<string, string>> = {
      absent: "gVisor, because there is no /dev/kvm",
      "not-permitted": "gVisor, because /dev/kvm may not be opened (evidence)",
      broken: "gVisor, because /dev/kvm does not work (evidence)",
      unknown: "gVisor, because it cannot be told what /dev/kvm runs (evidence)",
    };
    for (const [state, why] of Object.entries(expected))
      assert.deepEqual(choose("auto", state as KvmState), ["gvisor", why]);
  });

  it("auto: PVM only where a kernel for it is set", () => {
    assert.deepEqual(choose("auto", "pvm", files({ pvmKernelPath: null })), [
      "gvisor",
      "gVisor, because /dev/kvm runs PVM guests only, and pvmKernelPath is not set",
    ]);
    assert.equal(choose("auto", "pvm", files({ guestKernelPath: false }))[0], "firecracker pvm");
    assert.deepEqual(choose("auto", "pvm", files({ pvmKernelPath: false })), [
      "gvisor",
      "gVisor: /dev/kvm runs PVM guests only, but pvmKernelPath names /lib/vmlinux-pvm, which is not there",
    ]);
    assert.equal(choose("auto", "hardware")[0], "firecracker kvm");
  });

  it("what is wanted by name is had, or refused with what to do", () => {
    assert.deepEqual(choose("gvisor", "hardware"), ["gvisor", "gVisor, as configured"]);
    assert.equal(choose("kvm", "hardware", files({ pvmKernelPath: null }))[0], "firecracker kvm");
    assert.equal(choose("pvm", "pvm", files({ guestKernelPath: false }))[0], "firecracker pvm");
    assert.match(refusal("kvm", "pvm"), /kvm, and \/dev\/kvm runs PVM guests only → set virtualization to pvm/);
    assert.match(refusal("pvm", "hardware"), /→ set virtualization to kvm: this host needs no PVM/);
    assert.match(refusal("kvm", "absent"), /there is no \/dev\/kvm → load kvm_intel .*; or .* gvisor/);
    assert.match(refusal("kvm", "not-permitted"), /may not be opened .* → let aenvd open it/);
    assert.match(
      refusal("kvm", "hardware", files({ jailerPath: false })),
      /jailerPath names \/lib\/jailer, which is not there → run `npm run up -- --virtualization kvm`/,
    );
    assert.match(refusal("pvm", "pvm", files({ pvmKernelPath: null })), /pvmKernelPath is not set → docs\/drivers.md/);
  });

  it("what is wanted by name is tried where nothing tells what /dev/kvm runs", () => {
    assert.deepEqual(choose("kvm", "unknown"), [
      "firecracker kvm",
      "Firecracker, as configured; it cannot be told what /dev/kvm runs (evidence)",
    ]);
    assert.equal(choose("pvm", "unknown")[0], "firecracker pvm");
  });
});

describe("what /dev/kvm runs", () => {
  const hardware: KvmEvidence = {
    arch: "x64",
    openError: undefined,
    modules: ["kvm_intel"],
    cpuFlag: "vmx",
    probe: { outcome: "ran", reason: "" },
  };
  const state = (but: Partial<KvmEvidence>): KvmState => judgeKvm({ ...hardware, ...but }).state;

  it("opening it comes first", () => {
    assert.equal(state({ openError: "ENOENT" }), "absent");
    assert.equal(state({ openError: "EACCES" }), "not-permitted");
    assert.equal(state({ openError: "EPERM" }), "not-permitted");
    assert.deepEqual(judgeKvm({ ...hardware, openError: "ENODEV" }), {
      state: "broken",
      why: "opening it fails with ENODEV",
    });
  });

  it("a guest that was run counts for more than files", () => {
    assert.equal(state({ modules: [], cpuFlag: undefined }), "hardware");
    assert.equal(state({ probe: { outcome: "emulated", reason: "" } }), "pvm");
    assert.equal(state({ probe: { outcome: "failed", reason: "KVM_CREATE_VM: device or resource busy" } }), "broken");
    assert.equal(
      judgeKvm({
        ...hardware,
        modules: ["kvm_pvm"],
        cpuFlag: undefined,
        probe: { outcome: "emulated", reason: "KVM interprets guest code" },
      }).why,
      "KVM interprets guest code; the processor shows neither vmx nor svm, /sys/module kvm_pvm",
    );
  });

  it("without one, module and processor have to agree", () => {
    const byFiles = (modules: readonly string[], cpuFlag: KvmEvidence["cpuFlag"], arch = "x64"): KvmState =>
      state({ modules, cpuFlag, arch, probe: undefined });
    assert.equal(byFiles(["kvm_amd"], "svm"), "hardware");
    assert.equal(byFiles(["kvm_pvm"], undefined), "pvm");
    assert.equal(byFiles(["kvm_intel", "kvm_pvm"], undefined), "pvm");
    assert.equal(byFiles(["kvm_intel", "kvm_pvm"], "vmx"), "unknown");
    assert.equal(byFiles([], "vmx"), "unknown");
    assert.equal(byFiles(["kvm_intel"], undefined), "unknown");
    assert.equal(byFiles([], undefined, "arm64"), "hardware");
    assert.equal(state({ probe: { outcome: "untested", reason: "" } }), "hardware");
    assert.match(
      judgeKvm({ ...hardware, modules: [], probe: undefined }).why,
      /no module of KVM; no test guest was run/,
    );
  });

  it("reads what the probe prints and the processor shows", () => {
    assert.deepEqual(parseProbe("emulated KVM interprets guest code\n"), {
      outcome: "emulated",
      reason: "KVM interprets guest code",
    });
    assert.equal(parseProbe("usage: something else"), undefined);
    assert.equal(cpuFlagOf("model\t: x\nflags\t\t: fpu svm sse\n"), "svm");
    assert.equal(cpuFlagOf("vmx flags\t: fpu\nflags\t\t: fpu vmx_sub\n"), undefined);
  });
});

describe("what is there already", () => {
  const auto = (used: string, state: KvmState, present = files()): string =>
    chooseDriver({ wanted: "auto", kvm: { state, why: "evidence" }, files: present, used }).driver;

  it("is not left behind by auto: gVisor's goes on where Firecracker would run too", () => {
    assert.equal(auto("gvisor", "hardware"), "gvisor");
    assert.equal(auto("firecracker", "hardware"), "firecracker");
    assert.equal(auto("fake", "hardware"), "firecracker");
  });

  it("is not ended by auto: a host that lost what Firecracker needs does not start as another", () => {
    for (const lost of [
      () => auto("firecracker", "broken"),
      () => auto("firecracker", "hardware", files({ jailerPath: false })),
    ]) {
      assert.throws(lost, { kind: "unavailable", hint: /aenvd doctor/ });
    }
    assert.equal(
      chooseDriver({ wanted: "gvisor", kvm: { state: "broken", why: "" }, files: files(), used: "firecracker" }).driver,
      "gvisor",
    );
  });
});
