import { FirecrackerBench } from "../host/firecracker/bench.ts";
import { fromEnvironment } from "../host/machines/host.ts";

/** More words for a guest's kernel; what they leave out costs each machine under emulation seconds. */
export const QUICK_GUEST =
  "mitigations=off nokaslr init_on_alloc=0 randomize_kstack_offset=off audit=0 hardened_usercopy=off lsm=capability cryptomgr.notests";

/**
 * A host for VMs with whole Linux guests: the kernel and initrd that `npm run up` makes, the base template's image.
 * `modules`: `needed`, an initrd that differs in having those alone without which no guest starts.
 */
export function openLinuxBench(modules: "all" | "needed" = "all"): Promise<FirecrackerBench> {
  const initrd = modules === "all" ? "AENV_TEST_GUEST_INITRD" : "AENV_TEST_SMALL_INITRD";
  return FirecrackerBench.open(() => ({
    kernelPath: fromEnvironment("AENV_TEST_GUEST_KERNEL"),
    initrdPath: fromEnvironment(initrd),
    imagePath: fromEnvironment("AENV_TEST_IMAGE"),
    hasAgent: true,
    kernelArgs: QUICK_GUEST,
  }));
}
