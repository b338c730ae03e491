import { MIB, type Resources } from "#domain";

/** Firecracker's own memory, the kernel's tables for the guest's, and what it has of files open. */
const OVERHEAD_MIN_BYTES = 64 * MIB;
const OVERHEAD_SHARE = 16;
/** Firecracker's threads beside one for each processor. */
const THREADS = 16;

/** What the host holds the process to. The guest's kernel keeps the guest to less; these are for one that got out of it. */
export function hostLimits(resources: Resources): Resources {
  const overheadBytes = Math.max(OVERHEAD_MIN_BYTES, Math.ceil(resources.memoryBytes / OVERHEAD_SHARE));
  return {
    ...resources,
    memoryBytes: resources.memoryBytes + overheadBytes,
    pidsMax: Math.ceil(resources.vcpus) + THREADS,
  };
}
