import { constants } from "node:fs";
import { access, open, readFile } from "node:fs/promises";
import { arch } from "node:os";
import { join } from "node:path";
import type { CommandRunner } from "#lib/run";
import type { FirecrackerFiles, FirecrackerPaths, Installed, Virtualization, VirtualizationFacts } from "./choose.ts";
import { cpuFlagOf, judgeKvm, KVM_MODULES, type KvmEvidence, type KvmFacts, type KvmProbe, parseProbe } from "./kvm.ts";

const PROBE_TIMEOUT_MS = 10_000;

export interface ExamineOptions {
  readonly runner: CommandRunner;
  /** Where the program kvmprobe is. */
  readonly binDir: string;
  readonly virtualization: Virtualization;
  readonly paths: FirecrackerPaths;
}

/** What the choice of the driver depends on, as it is on this host now. Never throws for what the host lacks. */
export async function examineVirtualization(options: ExamineOptions): Promise<VirtualizationFacts> {
  const probe = (): Promise<KvmProbe | undefined> => runProbe(options.runner, join(options.binDir, "kvmprobe"));
  return { wanted: options.virtualization, kvm: await examineKvm(probe), files: await lookFor(options.paths) };
}

/** Looks at /dev/kvm; runs a guest only where `probe` is given and the device can be opened. */
export async function examineKvm(probe?: () => Promise<KvmProbe | undefined>): Promise<KvmFacts> {
  const openError = await openErrorOf("/dev/kvm");
  const there = await Promise.all(KVM_MODULES.map((name) => isThere(`/sys/module/${name}`)));
  const evidence: KvmEvidence = {
    arch: arch(),
    openError,
    modules: KVM_MODULES.filter((_, index) => there[index]),
    cpuFlag: cpuFlagOf(await readFile("/proc/cpuinfo", "utf8").catch(() => "")),
    probe: openError === undefined ? await probe?.() : undefined,
  };
  return judgeKvm(evidence);
}

async function lookFor(paths: FirecrackerPaths): Promise<FirecrackerFiles> {
  const installed = async (path: string | null): Promise<Installed> => ({
    path,
    isThere: path !== null && (await isThere(path)),
  });
  return {
    firecrackerPath: await installed(paths.firecrackerPath),
    jailerPath: await installed(paths.jailerPath),
    guestKernelPath: await installed(paths.guestKernelPath),
    guestInitrdPath: await installed(paths.guestInitrdPath),
    pvmKernelPath: await installed(paths.pvmKernelPath),
  };
}

async function runProbe(runner: CommandRunner, path: string): Promise<KvmProbe | undefined> {
  try {
    const { stdout } = await runner.run([path], { check: false, timeoutMs: PROBE_TIMEOUT_MS });
    return parseProbe(new TextDecoder().decode(stdout));
  } catch {
    return undefined; // not built
  }
}

/** undefined: it can be opened. */
async function openErrorOf(path: string): Promise<string | undefined> {
  try {
    await (await open(path, constants.O_RDWR)).close();
    return undefined;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code ?? String(error);
  }
}

async function isThere(path: string): Promise<boolean> {
  return await access(path, constants.R_OK).then(
    () => true,
    () => false,
  );
}
