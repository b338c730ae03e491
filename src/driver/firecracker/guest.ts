import { MIB } from "#domain";
import type { MachineSpec } from "../driver.ts";
import { maxTasks, OPEN_FILES, shmBytes } from "../guest-limits.ts";

/** What the initrd's `init` is told, on the kernel's command line. See native/internal/guestinit. */
export interface GuestConfig {
  readonly hostname: string;
  readonly network: {
    readonly device: string;
    readonly address: string;
    readonly gateway: string;
    readonly gatewayMac: string;
    readonly mtuBytes: number;
  };
  /** Processes and threads each user but root may have. */
  readonly maxTasks: number;
  readonly openFiles: number;
  readonly shmBytes: number;
  /** Command line of the image's own init. */
  readonly init?: readonly string[];
}

/** The kernel takes no longer line. */
const MAX_COMMAND_LINE_BYTES = 2047;

const KERNEL_ARGS = [
  "console=ttyS0",
  // A guest that reboots or panics ends its machine: Firecracker watches for the keyboard controller's reset.
  ...["reboot=k", "panic=1"],
  // The console costs an exit a byte.
  ...["quiet", "8250.nr_uarts=1"],
  // Devices that are not there and that the kernel would wait for.
  ...["i8042.noaux", "i8042.nomux", "i8042.dumbkbd"],
];

/** The virtual network card: the only one, so its name inside. */
const GUEST_DEVICE = "eth0";

export function guestConfig(spec: MachineSpec): GuestConfig {
  const { network } = spec;
  return {
    hostname: spec.hostname,
    network: {
      device: GUEST_DEVICE,
      address: network.address,
      gateway: network.gateway,
      gatewayMac: network.gatewayMacAddress,
      mtuBytes: network.mtuBytes,
    },
    maxTasks: maxTasks(spec),
    openFiles: OPEN_FILES,
    shmBytes: shmBytes(spec),
    ...(spec.image.init !== undefined && { init: spec.image.init }),
  };
}

/** `more`: the operator's own words for the guest's kernel. Throws when the whole is too long for a kernel. */
export function commandLine(config: GuestConfig, more: string): string {
  const encoded = Buffer.from(JSON.stringify(config)).toString("base64url");
  const line = [...KERNEL_ARGS, ...(more === "" ? [] : [more]), `aenv.config=${encoded}`].join(" ");
  if (Buffer.byteLength(line) > MAX_COMMAND_LINE_BYTES) {
    throw new RangeError(
      `the guest kernel's command line has ${Buffer.byteLength(line)} bytes, of ${MAX_COMMAND_LINE_BYTES} it takes: ` +
        "the image's init has too many arguments",
    );
  }
  return line;
}

export function memoryMib(memoryBytes: number): number {
  return Math.floor(memoryBytes / MIB);
}
