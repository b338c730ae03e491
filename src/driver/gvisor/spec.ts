import type { MachineSpec } from "../driver.ts";
import { OPEN_FILES, shmBytes, maxTasks as tasksByMemory } from "../guest-limits.ts";

/** Host processes: each of a guest's costs two to three, and the sandbox itself some dozens. */
const HOST_PROCESSES_PER_TASK = 3;
const HOST_PROCESSES_OF_SANDBOX = 256;

/** Everything a program may expect of root on a machine of its own. They act on gVisor's kernel, never on the host's. */
const CAPABILITIES = [
  ...["CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "SETFCAP"],
  ...["NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER", "SYS_CHROOT", "SYS_PTRACE"],
  ...["SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE"],
  ...["AUDIT_WRITE", "LINUX_IMMUTABLE", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ"],
].map((name) => `CAP_${name}`);

/** Folders a read-only image must bring, because nothing can be mounted where there is none. */
export const MOUNT_POINTS = ["/.aenv", "/proc", "/sys", "/dev"];

/** runsc skips a mount of a type it does not know. Named here it still counts as the image's own, else an empty /tmp would be
 *  covered by a tmpfs, whose files count as memory. */
const LEFT_TO_THE_DISK = "aenv-rootfs";

/** The OCI runtime configuration of a machine. */
export function ociSpec(spec: MachineSpec, cgroupPath: string): unknown {
  return {
    ociVersion: "1.2.1",
    hostname: spec.hostname,
    root: { path: spec.image.dir, readonly: false },
    process: {
      terminal: false,
      user: { uid: 0, gid: 0 },
      cwd: "/",
      args: ["/.aenv/envd"],
      env: ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8"],
      capabilities: {
        bounding: CAPABILITIES,
        effective: CAPABILITIES,
        permitted: CAPABILITIES,
        inheritable: CAPABILITIES,
      },
      rlimits: [rlimit("RLIMIT_NOFILE", OPEN_FILES), rlimit("RLIMIT_NPROC", maxTasks(spec))],
      noNewPrivileges: false,
    },
    mounts: mounts(spec),
    linux: {
      cgroupsPath: cgroupPath,
      namespaces: [
        ...["pid", "ipc", "uts", "mount"].map((type) => ({ type })),
        { type: "network", path: spec.network.netnsPath },
      ],
    },
  };
}

function mounts(spec: MachineSpec): unknown[] {
  const kernel = ["nosuid", "noexec", "nodev"];
  return [
    { destination: "/proc", type: "proc", source: "proc", options: kernel },
    { destination: "/sys", type: "sysfs", source: "sysfs", options: [...kernel, "ro"] },
    { destination: "/dev", type: "tmpfs", source: "tmpfs", options: ["nosuid", "mode=755"] },
    { destination: "/dev/pts", type: "devpts", source: "devpts", options: ["nosuid", "noexec"] },
    {
      destination: "/dev/shm",
      type: "tmpfs",
      source: "shm",
      options: ["nosuid", "nodev", "mode=1777", `size=${shmBytes(spec)}`],
    },
    { destination: "/tmp", type: LEFT_TO_THE_DISK, source: "none" },
    { destination: "/.aenv", type: "bind", source: spec.agentDir, options: ["bind", "ro", "nosuid", "nodev"] },
  ];
}

function rlimit(type: string, value: number): unknown {
  return { type, soft: value, hard: value };
}

/** How many processes and threads each user but root may have. A fork bomb has to end here: at the cgroup's limit of
 *  processes or memory the sandbox process itself comes to harm. */
export function maxTasks(spec: Pick<MachineSpec, "resources">): number {
  const byHost = Math.floor((spec.resources.pidsMax - HOST_PROCESSES_OF_SANDBOX) / HOST_PROCESSES_PER_TASK);
  return Math.max(16, Math.min(tasksByMemory(spec), byHost));
}
