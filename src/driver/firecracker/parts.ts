import type { DiskFiles } from "#lib/disk-files";
import type { Logger } from "#lib/log";
import type { CommandRunner, ProcessWatcher } from "#lib/run";
import type { Cgroups } from "../cgroup/index.ts";
import type { GuestKernel } from "../choose.ts";
import type { Files } from "./files.ts";
import type { Jails } from "./jails.ts";
import type { MemoryLayers } from "./memory-layers.ts";

export interface FirecrackerOptions {
  /** `pvm`: which pages a guest has written cannot be told, so its checkpoints are full. */
  readonly kind: GuestKernel;
  readonly firecrackerPath: string;
  readonly jailerPath: string;
  /** Uncompressed kernel image (ELF `vmlinux`) for guests. */
  readonly kernelPath: string;
  /** The initrd with our `init` and the kernel's modules. */
  readonly initrdPath: string;
  /** More words for the guest kernel's command line. */
  readonly kernelArgs: string;
  /** Starts Firecracker; what it starts must outlive this server. */
  readonly runner: CommandRunner;
  readonly watcher: ProcessWatcher;
  readonly diskFiles: DiskFiles;
  /** For short paths to sockets, `/run/aenv/0`. */
  readonly stateDir: string;
  /** For all files of the driver, `<data>/firecracker`; on one file system with images and checkpoints, which are linked. */
  readonly dir: string;
  /** Path of the machines' cgroups from the root of the hierarchies, `/aenv/0`. */
  readonly cgroupParent: string;
  /** The first of 65,536 user ids that are nobody else's on this host: each machine runs as one of its own. */
  readonly firstUid: number;
  readonly logger: Logger;
}

/** What the driver and its machines share. */
export interface Parts {
  readonly options: FirecrackerOptions;
  readonly files: Files;
  readonly jails: Jails;
  readonly layers: MemoryLayers;
  readonly cgroups: Cgroups;
  /** A checkpoint holds what a processor is in the middle of, so it goes on only on its like. */
  readonly processor: string;
}
