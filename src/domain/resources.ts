/** Limits of one machine, enforced by its cgroup. */
export interface Resources {
  readonly vcpus: number;
  readonly memoryBytes: number;
  /** Size of the writable layer. */
  readonly diskBytes: number;
  /** Processes and threads, counted on the host (each guest process costs about one host thread and one process). */
  readonly pidsMax: number;
}

export const MIB = 1024 * 1024;
export const GIB = 1024 * MIB;

/** What a template gets that asks for nothing: E2B's 2 vCPU and 1024 MiB. */
export const DEFAULT_RESOURCES: Resources = {
  vcpus: 2,
  memoryBytes: 1 * GIB,
  diskBytes: 10 * GIB,
  pidsMax: 4096,
};
