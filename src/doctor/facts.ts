import type { VirtualizationFacts } from "#driver";

/** What was found on a host, as plain data: gathered by probe.ts, judged by checks.ts. Sizes in bytes. */
export interface HostFacts {
  readonly kernel: string;
  readonly arch: string;
  readonly nodeVersion: string;
  readonly uid: number;
  readonly cgroup: CgroupFacts;
  /** Version line of each program, undefined when it cannot be started. */
  readonly programs: Readonly<Record<"ip" | "nft" | "mount" | "tc" | "mke2fs", string | undefined>>;
  readonly namespaces: Attempt;
  readonly erofs: Attempt;
  readonly runsc: RunscFacts;
  readonly seccompActions: readonly string[];
  /** kernel.yama.ptrace_scope; undefined without Yama. */
  readonly ptraceScope: number | undefined;
  readonly virtualization: VirtualizationFacts;
  readonly firecracker: FirecrackerVersions;
  /** /dev/net/tun */
  readonly tun: boolean;
  readonly fuse: boolean;
  readonly ipForward: boolean;
  /** Chains of others that drop what is forwarded unless a rule accepts it. */
  readonly droppingChains: readonly string[];
  /** Routes of others into the addresses that slots use. */
  readonly foreignRoutes: readonly string[];
  readonly dataDir: string;
  readonly diskFreeBytes: number;
  readonly memoryAvailableBytes: number;
  readonly openFilesLimit: number;
  /** Of the edge: for HTTP, and for HTTPS where that is wanted. */
  readonly ports: readonly PortFacts[];
  readonly clockSynchronised: boolean;
  readonly nowMs: number;
}

export interface PortFacts {
  readonly number: number;
  readonly taken: boolean;
  readonly byUs: boolean;
}

export interface CgroupFacts {
  readonly version: "v1" | "v2" | "none";
  /** Controllers that can be used; for v1 each has a hierarchy mounted. */
  readonly controllers: readonly string[];
}

/** Something that was tried for real. */
export type Attempt = { readonly worked: true } | { readonly worked: false; readonly reason: string };

export interface RunscFacts {
  readonly path: string;
  /** Undefined when it cannot be started. */
  readonly version: string | undefined;
  /** A sandbox that ran one command. */
  readonly sandbox: Attempt;
}

/** As the programs say it, `Firecracker v1.12.1`; undefined when one cannot be started. */
export interface FirecrackerVersions {
  readonly firecracker: string | undefined;
  readonly jailer: string | undefined;
}
