import type { MachineCapture, Resources } from "#domain";
import type { ByteRange } from "#lib/disk-files";

/**
 * The Driver contract: how one runtime isolates machines. No implementation here.
 *
 * Life of a machine. It is **booted** from an image once per template (the agent is its pid 1), **checkpointed** into a
 * folder, and from then on **restored** from such folders, any number of times, in any slot. A running machine can be
 * **paused** and **resumed** by the runtime itself in about a millisecond (its memory stays), checkpointed with or without
 * going on, and **stopped**. Of its disk alone a checkpoint can be made too: the image is booted with it. What a driver gets
 * are local files the orchestrator prepared; it never sees the store, the catalog or a name.
 *
 * Identity. A machine's id is sandbox id + generation, of one fixed length, and is never used twice. The driver makes,
 * fills, reads back and removes the machine's cgroup.
 *
 * Time. `monotonicJumps` says whether the guest's monotonic clock advances by the time spent in a checkpoint, all of it or
 * nothing. Whoever keeps deadlines inside counts running time.
 *
 * Limits. `limitsKeptBy` says whose kernel holds a machine to its memory and processes: where it is the host's, somebody
 * has to look after the machine before that kernel does; where it is a guest's own, the guest ends a process by itself.
 *
 * Room made ahead. `prepare` lets a driver do in a slot that waits for use what a start would else have to wait for.
 *
 * Death. Machines belong to no process of ours: a new aenvd finds them again by `leftovers` and takes them up by `adopt`.
 */
export interface Driver {
  readonly name: string;
  /** The runtime's version; a checkpoint is restored only by the version that made it. */
  readonly version: string;
  readonly capabilities: DriverCapabilities;

  /** Does what can be done before it is known which machine will run in this slot. Optional: a start in a slot that was not
   *  prepared does it then. Repeatable. On error nothing is left. */
  prepare(network: MachineNetwork): Promise<void>;
  /** Undoes `prepare`, where no machine was started there. Called before a slot is removed. Repeatable. */
  unprepare(network: MachineNetwork): Promise<void>;
  /** Starts a machine from its image, with `diskFrom` on the disk of a checkpoint made with `capture: "disk"` by this driver and
   *  version, else on an empty one; the folder is used as `restore` uses one. Returns when the runtime has started it; the
   *  agent may not answer yet. On error nothing of the machine is left. */
  boot(spec: MachineSpec, options?: { readonly diskFrom?: string }): Promise<Machine>;
  /** Starts a machine from a checkpoint made by this driver and version. `checkpointDir` is only read, may serve many
   *  restores at once, and may be removed after the call returns. On error nothing of the machine is left. */
  restore(spec: MachineSpec, checkpointDir: string): Promise<Machine>;
  /** Takes up a machine that an earlier aenvd started. undefined: it does not run (any more, or never finished starting). */
  adopt(spec: MachineSpec): Promise<Machine | undefined>;
  /** Ids of all machines of which anything is left on this host under this driver's root: processes, also such as the
   *  runtime itself has lost sight of, runtime state, cgroups, bundles. */
  leftovers(): Promise<MachineId[]>;
  /** Removes all that is left of a machine, running or not. Repeatable. */
  destroy(id: MachineId): Promise<void>;
  close(): Promise<void>;
}

export type MachineId = string;

export interface DriverCapabilities {
  /** The guest's monotonic clock includes the time between checkpoint and restore. Absent: that is for the host's kernel to decide. */
  readonly monotonicJumps?: boolean;
  /** Generators inside living processes repeat in clones of one checkpoint (kernel randomness never does). */
  readonly clonesShareUserRandomness: true;
  /** A checkpoint writes only what changed since the last one. */
  readonly incrementalMemory: boolean;
  readonly limitsKeptBy: "host" | "guest";
  /** Checkpoints of the disk alone. `complete`: they hold all that was written. `flushed`: what the guest's kernel has not
   *  written out is missing, so the agent has to have its disk frozen first. Absent: there are none. */
  readonly diskCapture?: "complete" | "flushed";
  /** The most virtual processors a machine can have. Absent: as many as the host schedules. */
  readonly maxVcpus?: number;
  /** `MachineImage.init` is run. */
  readonly imageInit: boolean;
}

export interface MachineSpec {
  readonly id: MachineId;
  readonly resources: Resources;
  readonly hostname: string;
  readonly image: MachineImage;
  /** Content-addressed folder with the static agent `envd`, shown inside as `/.aenv`, read-only. */
  readonly agentDir: string;
  readonly network: MachineNetwork;
}

/** The read-only root file system, in both the forms that drivers take it in. */
export interface MachineImage {
  /** A mounted folder. */
  readonly dir: string;
  /** The flat EROFS file that is mounted there, on the file system of the data folder. */
  readonly file: string;
  /** Command line of an init that the image brings and means to be pid 1; the agent is then started beside it. */
  readonly init?: readonly string[];
}

/** The part of a slot a driver needs. Addresses are the same in every slot. */
export interface MachineNetwork {
  /** `/run/netns/NAME`. */
  readonly netnsPath: string;
  /** The device inside the namespace, already with all that follows. */
  readonly device: string;
  readonly macAddress: string;
  /** With the length of its prefix, `169.254.0.21/30`. */
  readonly address: string;
  readonly gateway: string;
  /** Entered by hand: nobody answers ARP. */
  readonly gatewayMacAddress: string;
  readonly mtuBytes: number;
}

export interface Machine {
  readonly id: MachineId;
  /** Process of the runtime whose end is the machine's end. */
  readonly pid: number;
  /** Of the runtime that runs it, and so of its checkpoints: a machine outlives an upgrade of the driver. */
  readonly version: string;
  /** Settles (never rejects) when the machine has ended, for whatever reason. */
  readonly exited: Promise<MachineExit>;

  /** Stops the guest's time and CPU use, memory stays. By the runtime's own means, in milliseconds. Repeatable. */
  pause(): Promise<void>;
  resume(): Promise<void>;
  /** Writes the machine's whole state into `dir` (made by the driver, must not exist), or with `capture: "disk"` what is on its
   *  disk. With `keepRunning` the machine goes on afterwards and its TCP connections stay up; without, it has ended when the
   *  call returns.
   *  Throws CheckpointError, which says whether the machine still runs. Files are not synced, and never change: other
   *  checkpoints may share them by hard links. */
  checkpoint(dir: string, options: CheckpointOptions): Promise<CheckpointReport>;
  /** Ends the machine and removes all traces of it. Repeatable. What runs in it has been killed when the call returns its promise,
   *  which settles when all is gone. */
  stop(): Promise<void>;
  stats(): Promise<MachineStats>;
  /** Moves the machine's memory out of the host's, as far as that has swap for it and the kernel does not give up. Nothing is lost:
   *  what is touched comes back by itself. For a paused machine, which touches nothing. Takes about 2 s a GiB. */
  reclaim(): Promise<void>;
  /** After `reclaim`, brings back what the runtime uses of its own accord now and then, also of a paused machine; otherwise it comes
   *  back page by page at a time of the runtime's choosing. Takes about 0.1 s; the machine may be resumed, captured or stopped meanwhile. */
  bringBackRuntime(): Promise<void>;
  /** Cheap enough to be asked hundreds of times a second. undefined: the machine has ended, or has a kernel of its own that
   *  keeps its memory. */
  memory(): MemoryReading | undefined;
}

export interface CheckpointOptions {
  readonly keepRunning: boolean;
  /** Absent: memory. Preconditions of `disk`: the driver's `diskCapture`. */
  readonly capture?: MachineCapture;
  /** Whoever asks puts it on stable storage next: what can be written out while it is made is. */
  readonly durable?: boolean;
}

export interface CheckpointReport {
  /** Of the guest's memory, what has changed since the checkpoint before this one, or the one it was restored from.
   *  Absent: all of it has to be taken as changed. */
  readonly dirtyMemory?: readonly ByteRange[];
}

export interface MachineExit {
  readonly atMs: number;
  /** out-of-memory: the host's kernel had to end it for its memory limit. stopped: by `stop` or `checkpoint`. */
  readonly reason: "stopped" | "out-of-memory" | "crashed";
  /** Last lines of what the runtime said, where it said anything. */
  readonly detail?: string;
}

export interface MachineStats {
  readonly memoryBytes: number;
  readonly cpuUsec: number;
  readonly pids: number;
  /** How many processes of the machine the host's kernel has ended for its memory limit. */
  readonly oomKills: number;
}

export interface MemoryReading {
  /** What counts against the limit, without file cache, which the kernel drops before it kills. */
  readonly usedBytes: number;
  readonly oomKills: number;
}

export class CheckpointError extends Error {
  /** The machine goes on running; otherwise it is gone. */
  readonly machineRuns: boolean;
  constructor(message: string, machineRuns: boolean, options?: ErrorOptions) {
    super(message, options);
    this.name = "CheckpointError";
    this.machineRuns = machineRuns;
  }
}
