import { AenvError } from "#domain";
import {
  chooseDriver,
  type DriverChoice,
  describeKvm,
  type FirecrackerPaths,
  firstMissing,
  kernelInQuestion,
  kvmRemedy,
} from "#driver";
import type { CheckStatus, Judgement, Rule } from "./check.ts";
import type { HostFacts } from "./facts.ts";

/** What isolates sandboxes here, and whether what it takes is there. Of Firecracker's parts only where it would be chosen. */
export const VIRTUALIZATION_RULES: readonly (readonly [string, Rule])[] = [
  ["kvm", kvm],
  ["firecracker", firecracker],
  ["jailer", jailer],
  ["guest-kernel", guestKernel],
  ["tun", tun],
  ["virtualization", ({ virtualization }) => choice(virtualization)],
];

/** What the driver gVisor needs and the other does not. */
const GVISOR_ONLY: readonly string[] = ["seccomp", "ptrace", "runsc", "sandbox"];

/** A judgement as it counts with the driver that is chosen: what the other one lacks stops no sandbox. */
export function weigh(id: string, judgement: Judgement, { virtualization }: HostFacts): Judgement {
  if (judgement.status !== "fail" || !GVISOR_ONLY.includes(id)) return judgement;
  const chosen = tryToChoose(virtualization);
  return chosen instanceof AenvError || chosen.driver === "gvisor" ? judgement : { ...judgement, status: "warn" };
}

function kvm({ virtualization: { kvm, wanted } }: HostFacts): Judgement {
  const found = describeKvm(kvm);
  const isHindrance = wanted !== "gvisor" && (kvm.state === "not-permitted" || kvm.state === "broken");
  return isHindrance ? { status: "warn", found, fix: kvmRemedy(kvm) } : { status: "ok", found };
}

function firecracker(facts: HostFacts): Judgement | undefined {
  return program(facts, "firecrackerPath", facts.firecracker.firecracker);
}

function jailer(facts: HostFacts): Judgement | undefined {
  const judgement = program(facts, "jailerPath", facts.firecracker.jailer);
  const [ours, theirs] = [facts.firecracker.jailer, facts.firecracker.firecracker].map((line) =>
    line?.split(" ").at(-1),
  );
  if (judgement?.status !== "ok" || theirs === undefined || ours === theirs) return judgement;
  return {
    status: "warn",
    found: `${judgement.found}, and Firecracker is ${theirs}`,
    fix: "take both from one release",
  };
}

function program(facts: HostFacts, field: keyof FirecrackerPaths, version: string | undefined): Judgement | undefined {
  const { files } = facts.virtualization;
  const missing = firstMissing(files, [field]);
  if (missing !== undefined) return lacking(facts, missing, "run `npm run up`, which brings it");
  if (version !== undefined) return needed(facts) && { status: "ok", found: `${version} at ${files[field].path}` };
  return lacking(facts, `${files[field].path} cannot be started`, "take the one that `npm run up` brings");
}

function guestKernel(facts: HostFacts): Judgement | undefined {
  const kernel = kernelInQuestion(facts.virtualization);
  const field = kernel === "pvm" ? "pvmKernelPath" : "guestKernelPath";
  const { files } = facts.virtualization;
  const missing = firstMissing(files, [field, "guestInitrdPath"]);
  if (missing === undefined) return needed(facts) && { status: "ok", found: `${files[field].path}` };
  return lacking(facts, missing, kernel === "pvm" ? "see docs/drivers.md" : "run `npm run up`, which makes it");
}

function tun(facts: HostFacts): Judgement | undefined {
  if (facts.tun) return needed(facts) && { status: "ok", found: "/dev/net/tun" };
  return lacking(facts, "no /dev/net/tun", "load the kernel module tun, and pass the device to the container");
}

function choice(facts: HostFacts["virtualization"]): Judgement {
  const chosen = tryToChoose(facts);
  if (!(chosen instanceof AenvError)) return { status: "ok", found: chosen.why };
  return { status: "fail", found: chosen.message, fix: chosen.hint ?? "" };
}

function tryToChoose(facts: HostFacts["virtualization"]): DriverChoice | AenvError {
  try {
    return chooseDriver(facts);
  } catch (error) {
    if (error instanceof AenvError) return error;
    throw error;
  }
}

/** undefined where Firecracker is not in question. */
function needed({ virtualization }: HostFacts): true | undefined {
  return kernelInQuestion(virtualization) === undefined ? undefined : true;
}

/** Without it `auto` is content with gVisor; who asked for Firecracker gets nothing. */
function lacking(facts: HostFacts, found: string, fix: string): Judgement | undefined {
  const status: CheckStatus = facts.virtualization.wanted === "auto" ? "warn" : "fail";
  return needed(facts) && { status, found, fix };
}
