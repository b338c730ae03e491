import type { Check, Judgement, Rule } from "./check.ts";
import type { Attempt, HostFacts } from "./facts.ts";
import { VIRTUALIZATION_RULES, weigh } from "./virtualization.ts";

const GIB = 1024 ** 3;
const NEEDED_KERNEL = [6, 8] as const;
const NEEDED_NODE_MAJOR = 24;
const NEEDED_CONTROLLERS = ["cpu", "memory", "pids"] as const;
/** systrap stops system calls by a trap and reads them as notifications. */
const NEEDED_SECCOMP = ["trap", "user_notif"] as const;
/** Before this the project did not exist: a clock that says so is wrong. */
const EARLIEST_NOW_MS = Date.UTC(2026, 0, 1);

/** Judges a host. Pure: the same facts give the same answer. */
export function checkFacts(facts: HostFacts): readonly Check[] {
  return RULES.flatMap(([id, rule]) => {
    const judgement = rule(facts);
    return judgement === undefined ? [] : [{ id, ...weigh(id, judgement, facts) }];
  });
}

const RULES: readonly (readonly [string, Rule])[] = [
  ["platform", platform],
  ["root", (f) => demand(f.uid === 0, `uid ${f.uid}`, "run aenvd as root (sudo npm run up)")],
  ["kernel", kernel],
  ["node", node],
  ["cgroup", cgroup],
  ["programs", programs],
  [
    "namespaces",
    (f) =>
      tried(
        f.namespaces,
        "namespace, veth pair and address translation made and removed",
        "install iproute2 and nftables; the kernel needs veth, nf_tables and nf_nat",
      ),
  ],
  ["forwarding", forwarding],
  ["addresses", addresses],
  [
    "erofs",
    (f) =>
      tried(
        f.erofs,
        "an image was mounted",
        "the kernel needs EROFS (modprobe erofs), and before Linux 6.12 loop devices (modprobe loop)",
      ),
  ],
  [
    "fuse",
    (f) =>
      prefer(
        f.fuse,
        "/dev/fuse",
        "no /dev/fuse",
        "load the kernel module fuse: without it images cannot be loaded on demand",
      ),
  ],
  ["seccomp", seccomp],
  ["ptrace", ptrace],
  ["runsc", runsc],
  [
    "sandbox",
    (f) =>
      tried(
        f.runsc.sandbox,
        "a gVisor sandbox ran a command",
        "see the reason; `npm run up` builds the runsc that is known to work",
      ),
  ],
  ...VIRTUALIZATION_RULES,
  ["disk", disk],
  ["memory", memory],
  ["open-files", openFiles],
  ["port", port],
  ["clock", clock],
];

function platform({ arch }: HostFacts): Judgement {
  return demand(arch === "x64" || arch === "arm64", arch, "aenv runs on x64 and arm64 only");
}

function kernel({ kernel }: HostFacts): Judgement {
  const [major = 0, minor = 0] = kernel.split(/[.-]/).map(Number);
  const enough = major > NEEDED_KERNEL[0] || (major === NEEDED_KERNEL[0] && minor >= NEEDED_KERNEL[1]);
  return demand(enough, kernel, `Linux ${NEEDED_KERNEL.join(".")} or newer is needed`);
}

function node({ nodeVersion }: HostFacts): Judgement {
  const enough = Number(nodeVersion.split(".")[0]) >= NEEDED_NODE_MAJOR;
  return demand(enough, nodeVersion, "start it by bin/aenvd or `npm run up`, which bring a Node that is new enough");
}

function cgroup({ cgroup }: HostFacts): Judgement {
  const missing = NEEDED_CONTROLLERS.filter((name) => !cgroup.controllers.includes(name));
  const found = `${cgroup.version}: ${cgroup.controllers.join(" ") || "no controllers"}`;
  if (missing.length === 0) return { status: "ok", found };
  return {
    status: "fail",
    found,
    fix: `sandboxes need limits: enable the controllers ${missing.join(", ")} (kernel command line, or delegation to this container)`,
  };
}

function programs({ programs }: HostFacts): Judgement {
  const missing = Object.entries(programs)
    .filter(([, version]) => version === undefined)
    .map(([name]) => name);
  const found = missing.length === 0 ? Object.values(programs).join(", ") : `missing: ${missing.join(", ")}`;
  return demand(missing.length === 0, found, "apt-get install iproute2 nftables mount e2fsprogs");
}

function forwarding({ ipForward, droppingChains }: HostFacts): Judgement {
  if (droppingChains.length > 0) {
    const found = `forwarded packets are dropped by ${droppingChains.join(", ")}`;
    return {
      status: "warn",
      found,
      fix: "another firewall is active: accept forwarding from and to 198.18.0.0/15 in it, else sandboxes have no internet",
    };
  }
  if (!ipForward) return { status: "ok", found: "net.ipv4.ip_forward is off; the server turns it on" };
  return { status: "ok", found: "on, no other firewall in the way" };
}

function addresses({ foreignRoutes }: HostFacts): Judgement {
  if (foreignRoutes.length === 0) return { status: "ok", found: "198.18.0.0/15 is free" };
  return {
    status: "warn",
    found: `others use ${foreignRoutes.join(", ")}`,
    fix: "move them out of 198.18.0.0/15, which sandboxes' slots use",
  };
}

function seccomp({ seccompActions }: HostFacts): Judgement {
  const missing = NEEDED_SECCOMP.filter((action) => !seccompActions.includes(action));
  const found = missing.length === 0 ? "user notification and trap are there" : `missing: ${missing.join(", ")}`;
  return demand(missing.length === 0, found, "gVisor needs a kernel with CONFIG_SECCOMP_FILTER");
}

function ptrace({ ptraceScope }: HostFacts): Judgement {
  const found = ptraceScope === undefined ? "not restricted" : `kernel.yama.ptrace_scope is ${ptraceScope}`;
  return demand(
    ptraceScope !== 3,
    found,
    "gVisor traces its own processes: set kernel.yama.ptrace_scope to 2 or less and restart the host",
  );
}

function runsc({ runsc }: HostFacts): Judgement {
  if (runsc.version !== undefined) return { status: "ok", found: `${runsc.version} at ${runsc.path}` };
  return { status: "fail", found: `${runsc.path} cannot be started`, fix: "run `npm run up`, which builds it" };
}

function disk({ dataDir, diskFreeBytes }: HostFacts): Judgement {
  const found = `${gib(diskFreeBytes)} free for ${dataDir}`;
  const fix = "free some space or choose another --data-dir: images, checkpoints and what sandboxes write lie there";
  if (diskFreeBytes < 2 * GIB) return { status: "fail", found, fix };
  return diskFreeBytes < 15 * GIB ? { status: "warn", found, fix } : { status: "ok", found };
}

function memory({ memoryAvailableBytes }: HostFacts): Judgement {
  const found = `${gib(memoryAvailableBytes)} available`;
  const fix = "a sandbox takes about 30 MB and what runs in it; stop something or add memory";
  if (memoryAvailableBytes < GIB / 2) return { status: "fail", found, fix };
  return memoryAvailableBytes < 2 * GIB ? { status: "warn", found, fix } : { status: "ok", found };
}

function openFiles({ openFilesLimit }: HostFacts): Judgement {
  const found = `${openFilesLimit} open files allowed`;
  return prefer(
    openFilesLimit >= 16_384,
    found,
    found,
    "raise the limit (ulimit -n 65536): every connection takes two",
  );
}

function port({ ports }: HostFacts): Judgement {
  const others = ports.filter(({ taken, byUs }) => taken && !byUs);
  if (others.length > 0) {
    return {
      status: "warn",
      found: others.map(({ number }) => `${number} is taken by another program`).join(", "),
      fix: "choose another one: npm run up -- --port N (HTTPS takes N + 443, unless the setting tlsListen says otherwise)",
    };
  }
  const said = ports.map(({ number, taken }) => `${number} is ${taken ? "served by aenv" : "free"}`);
  return { status: "ok", found: said.join(", ") };
}

function clock({ clockSynchronised, nowMs }: HostFacts): Judgement {
  const found = new Date(nowMs).toISOString();
  if (nowMs < EARLIEST_NOW_MS)
    return { status: "fail", found, fix: "the clock is wrong: set it, then TLS and timeouts work" };
  return prefer(
    clockSynchronised,
    `${found}, synchronised`,
    `${found}, not known to be synchronised`,
    "run a time service (chrony, systemd-timesyncd): sandboxes get their time from this host",
  );
}

function demand(holds: boolean, found: string, fix: string): Judgement {
  return holds ? { status: "ok", found } : { status: "fail", found, fix };
}

function prefer(holds: boolean, good: string, bad: string, fix: string): Judgement {
  return holds ? { status: "ok", found: good } : { status: "warn", found: bad, fix };
}

function tried(attempt: Attempt, good: string, fix: string): Judgement {
  return attempt.worked ? { status: "ok", found: good } : { status: "fail", found: attempt.reason, fix };
}

function gib(bytes: number): string {
  return `${(bytes / GIB).toFixed(1)} GiB`;
}
