/** What the host's /dev/kvm can run. */
export interface KvmFacts {
  readonly state: KvmState;
  /** The evidence, in a few words. */
  readonly why: string;
}

/**
 * hardware: ordinary guests, on the processor. pvm: guests whose kernel knows of PVM; the code of others is interpreted, too
 * slowly and not wholly. broken: it is there and does not work. unknown: it can be opened, and nothing tells what it runs.
 */
export type KvmState = "absent" | "not-permitted" | "hardware" | "pvm" | "broken" | "unknown";

export interface KvmEvidence {
  /** As Node names it: x64, arm64. */
  readonly arch: string;
  /** The code with which opening /dev/kvm for reading and writing failed; undefined when it did not. */
  readonly openError: string | undefined;
  /** Of KVM's modules those that /sys/module shows, built in or loaded. None where a container hides it. */
  readonly modules: readonly string[];
  /** The processor's virtualization, as /proc/cpuinfo shows it. */
  readonly cpuFlag: "vmx" | "svm" | undefined;
  /** Of the program kvmprobe; undefined when it could not be run. */
  readonly probe: KvmProbe | undefined;
}

export interface KvmProbe {
  readonly outcome: "ran" | "emulated" | "failed" | "untested";
  readonly reason: string;
}

/** KVM's modules that run guests by hardware. */
const BY_HARDWARE = ["kvm_intel", "kvm_amd"] as const;
const PVM = "kvm_pvm";
/** Of which /sys/module is asked. */
export const KVM_MODULES: readonly string[] = [...BY_HARDWARE, PVM];

/** Pure. A guest that was run is worth more than what files show. */
export function judgeKvm(evidence: KvmEvidence): KvmFacts {
  const { openError, probe } = evidence;
  if (openError === "ENOENT") return { state: "absent", why: hardwareOf(evidence) };
  if (openError === "EACCES" || openError === "EPERM") return { state: "not-permitted", why: openError };
  if (openError !== undefined) return { state: "broken", why: `opening it fails with ${openError}` };
  switch (probe?.outcome) {
    case "ran":
      return { state: "hardware", why: `a test guest ran; ${hardwareOf(evidence)}` };
    case "emulated":
      return { state: "pvm", why: `${probe.reason}; ${hardwareOf(evidence)}` };
    case "failed":
      return { state: "broken", why: `${probe.reason}; ${hardwareOf(evidence)}` };
    default:
      return { state: stateByFiles(evidence), why: `${hardwareOf(evidence)}; no test guest was run` };
  }
}

/** Parses the line that kvmprobe prints. undefined: it is none. */
export function parseProbe(line: string): KvmProbe | undefined {
  const [, outcome, reason = ""] = /^(ran|emulated|failed|untested)\s+(.*)$/m.exec(line) ?? [];
  return outcome === undefined ? undefined : { outcome: outcome as KvmProbe["outcome"], reason };
}

/** `vmx` or `svm` of /proc/cpuinfo. */
export function cpuFlagOf(cpuinfo: string): "vmx" | "svm" | undefined {
  const flags = /^flags\s*:(.*)$/m.exec(cpuinfo)?.[1]?.split(/\s+/) ?? [];
  return (["vmx", "svm"] as const).find((flag) => flags.includes(flag));
}

function stateByFiles({ arch, modules, cpuFlag }: KvmEvidence): KvmState {
  if (arch === "arm64") return "hardware"; // it knows no other KVM
  const byHardware = BY_HARDWARE.some((name) => modules.includes(name));
  // A module that is built in shows itself also where it has found nothing to work with, so each needs a second witness.
  if (modules.includes(PVM)) return byHardware && cpuFlag !== undefined ? "unknown" : "pvm";
  return byHardware && cpuFlag !== undefined ? "hardware" : "unknown";
}

function hardwareOf({ arch, modules, cpuFlag }: KvmEvidence): string {
  const processor =
    arch === "arm64" ? "the processor is arm64" : `the processor shows ${cpuFlag ?? "neither vmx nor svm"}`;
  return `${processor}, /sys/module ${modules.length > 0 ? modules.join(" and ") : "no module of KVM"}`;
}
