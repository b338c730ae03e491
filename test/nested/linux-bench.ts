import { FirecrackerBench } from "../host/firecracker/bench.ts";
import { fromEnvironment } from "../host/machines/host.ts";

/** A host for VMs with whole Linux guests: the kernel and initrd that `npm run up` makes, the base template's image. */
export function openLinuxBench(): Promise<FirecrackerBench> {
  return FirecrackerBench.open(() => ({
    kernelPath: fromEnvironment("AENV_TEST_GUEST_KERNEL"),
    initrdPath: fromEnvironment("AENV_TEST_GUEST_INITRD"),
    imagePath: fromEnvironment("AENV_TEST_IMAGE"),
    hasAgent: true,
    // Each costs a machine under emulation seconds.
    kernelArgs: "mitigations=off nokaslr",
  }));
}
