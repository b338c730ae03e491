import { AenvError } from "#domain";
import type { KvmFacts, KvmState } from "./kvm.ts";

/** What the operator wants: one driver, or the best this host can do. */
export type Virtualization = "auto" | "kvm" | "pvm" | "gvisor";

/** As in the configuration, whose names they have. */
export interface FirecrackerPaths {
  readonly firecrackerPath: string;
  readonly jailerPath: string;
  readonly guestKernelPath: string;
  readonly guestInitrdPath: string;
  /** null: there is none. */
  readonly pvmKernelPath: string | null;
}

export interface Installed {
  readonly path: string | null;
  readonly isThere: boolean;
}

export type FirecrackerFiles = Readonly<Record<keyof FirecrackerPaths, Installed>>;

export interface VirtualizationFacts {
  readonly wanted: Virtualization;
  readonly kvm: KvmFacts;
  readonly files: FirecrackerFiles;
  /** Name of the driver that made what this server has, so that `auto` does not leave it behind. Absent: it has nothing. */
  readonly used?: string;
}

export type DriverChoice = { readonly why: string } & (
  | { readonly driver: "gvisor" }
  /** `kernel`: which kind of guest kernel runs in the machines; snapshots of one kind do not run on the other. */
  | { readonly driver: "firecracker"; readonly kernel: GuestKernel }
);

export type GuestKernel = "kvm" | "pvm";

const SAYS: Readonly<Record<KvmState, string>> = {
  absent: "there is no /dev/kvm",
  "not-permitted": "/dev/kvm may not be opened",
  hardware: "/dev/kvm runs ordinary guests",
  pvm: "/dev/kvm runs PVM guests only",
  broken: "/dev/kvm does not work",
  unknown: "it cannot be told what /dev/kvm runs",
};

/** What to do about a /dev/kvm that cannot run what is wanted. */
const REMEDY: Readonly<Record<KvmState, string>> = {
  absent: "load kvm_intel or kvm_amd; it needs virtualization enabled in the firmware, or lent to this virtual machine",
  "not-permitted": "let aenvd open it: run it as root, and pass the device to the container it runs in",
  hardware: "set virtualization to kvm: this host needs no PVM",
  pvm: "set virtualization to pvm, and pvmKernelPath to a guest kernel that knows of PVM",
  broken: "load kvm_intel or kvm_amd, and see whether another hypervisor has the processor",
  unknown: "",
};

/**
 * Which driver a server on this host uses, and why, in one line. Pure.
 * @throws AenvError unavailable: what is wanted by name cannot work here; the hint says what to do
 */
export function chooseDriver(facts: VirtualizationFacts): DriverChoice {
  switch (facts.wanted) {
    case "gvisor":
      return { driver: "gvisor", why: "gVisor, as configured" };
    case "kvm":
    case "pvm":
      return demanded(facts, facts.wanted);
    case "auto":
      return kept(facts, best(facts));
  }
}

/**
 * The kind of guest kernel that Firecracker would run, were all it needs installed. undefined: this is a host for gVisor.
 * PVM only where somebody has set it up: its kernels are of the operator's own making.
 */
export function kernelInQuestion({ wanted, kvm, files }: VirtualizationFacts): GuestKernel | undefined {
  if (wanted !== "auto") return wanted === "gvisor" ? undefined : wanted;
  if (kvm.state === "hardware") return "kvm";
  return kvm.state === "pvm" && files.pvmKernelPath.path !== null ? "pvm" : undefined;
}

/** Of the files of Firecracker and its machines the first that is not there, in words; undefined when all are. */
export function firstMissing(files: FirecrackerFiles, fields: readonly (keyof FirecrackerPaths)[]): string | undefined {
  for (const field of fields) {
    const { path, isThere } = files[field];
    if (path === null) return `${field} is not set`;
    if (!isThere) return `${field} names ${path}, which is not there`;
  }
  return undefined;
}

/** How /dev/kvm is, in one line. */
export function describeKvm({ state, why }: KvmFacts): string {
  return `${SAYS[state]} (${why})`;
}

/** The same for a line about something else: with the evidence only where nothing else says what is the matter. */
function mention(kvm: KvmFacts): string {
  const speaksForItself = kvm.state === "absent" || kvm.state === "hardware" || kvm.state === "pvm";
  return speaksForItself ? SAYS[kvm.state] : describeKvm(kvm);
}

/** What to do where /dev/kvm is not of use; empty when nobody knows. */
export function kvmRemedy({ state }: KvmFacts): string {
  return REMEDY[state];
}

function demanded({ kvm, files }: VirtualizationFacts, kernel: GuestKernel): DriverChoice {
  const fits = kvm.state === (kernel === "kvm" ? "hardware" : "pvm");
  if (!fits && kvm.state !== "unknown") {
    throw new AenvError("unavailable", `virtualization is ${kernel}, and ${mention(kvm)}`, {
      hint: `${kvmRemedy(kvm)}; or set virtualization to gvisor`,
    });
  }
  const lacking = firstMissing(files, filesFor(kernel));
  if (lacking !== undefined) {
    throw new AenvError("unavailable", `virtualization is ${kernel}, and ${lacking}`, {
      hint:
        kernel === "pvm" && !files.pvmKernelPath.isThere
          ? "docs/drivers.md says where a PVM guest kernel comes from; or set virtualization to gvisor"
          : `run \`npm run up -- --virtualization ${kernel}\`, which brings what is missing; or set virtualization to gvisor`,
    });
  }
  return {
    driver: "firecracker",
    kernel,
    why: `Firecracker, as configured; ${mention(kvm)}`,
  };
}

function best(facts: VirtualizationFacts): DriverChoice {
  const { kvm, files } = facts;
  const kernel = kernelInQuestion(facts);
  if (kernel === undefined) {
    const unset = kvm.state === "pvm" ? ", and pvmKernelPath is not set" : "";
    return { driver: "gvisor", why: `gVisor, because ${mention(kvm)}${unset}` };
  }
  const lacking = firstMissing(files, filesFor(kernel));
  if (lacking !== undefined) return { driver: "gvisor", why: `gVisor: ${SAYS[kvm.state]}, but ${lacking}` };
  if (facts.used === "gvisor") {
    return {
      driver: "gvisor",
      why: `gVisor, which made the templates that are here; ${mention(kvm)} too: set virtualization to ${kernel} to build them anew`,
    };
  }
  return { driver: "firecracker", kernel, why: `Firecracker, because ${mention(kvm)}` };
}

/** What runs and what is paused belongs to the driver that made it: `auto` does not change drivers under it. */
function kept({ used }: VirtualizationFacts, choice: DriverChoice): DriverChoice {
  if (used?.startsWith("firecracker") !== true || choice.driver === "firecracker") return choice;
  throw new AenvError(
    "unavailable",
    `the sandboxes and templates here are Firecracker's, and this host is for ${choice.why}`,
    {
      hint: "restore what Firecracker needs (`aenvd doctor` says what is missing); or set virtualization to gvisor, which gives them up",
    },
  );
}

function filesFor(kernel: GuestKernel): readonly (keyof FirecrackerPaths)[] {
  return ["firecrackerPath", "jailerPath", kernel === "kvm" ? "guestKernelPath" : "pvmKernelPath", "guestInitrdPath"];
}
