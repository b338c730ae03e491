import type { CommandRunner, RunOptions } from "#lib/run";
import type { MachineNetwork } from "../driver.ts";

export const TAP = "tap0";
const COMMAND_TIMEOUT_MS = 20_000;

/**
 * How a VM comes to a slot's network: a tap device beside the slot's own, and every frame that arrives at one leaves by the
 * other, before the namespace's own stack sees it. So the guest has the link-layer and inner address of the slot's device,
 * and nothing of the slot is changed.
 */
export class Wiring {
  readonly #runner: CommandRunner;
  readonly #gid: number;
  /** Namespaces that have their tap. */
  readonly #wired = new Set<string>();

  /** `gid`: whose processes may open the taps. */
  constructor(runner: CommandRunner, gid: number) {
    this.#runner = runner;
    this.#gid = gid;
  }

  /** Once in each namespace: it goes with it. */
  async ensure(network: MachineNetwork): Promise<void> {
    if (this.#wired.has(network.netnsPath)) return;
    try {
      await this.#make(network);
    } catch {
      // A server before this one may have got anywhere with it.
      await this.#inside(network, ["ip", "-force", "-batch", "-"], [`link del ${TAP}`], { check: false });
      await this.#inside(network, ["tc", "-batch", "-"], [`qdisc del dev ${network.device} ingress`], { check: false });
      await this.#make(network);
    }
    this.#wired.add(network.netnsPath);
  }

  /** The namespace has gone, or will. */
  forget({ netnsPath }: MachineNetwork): void {
    this.#wired.delete(netnsPath);
  }

  async #make(network: MachineNetwork): Promise<void> {
    await this.#inside(network, ["ip", "-batch", "-"], tapLines(network, this.#gid));
    await this.#inside(network, ["tc", "-batch", "-"], redirectLines(network));
  }

  async #inside(
    { netnsPath }: MachineNetwork,
    argv: string[],
    lines: string[],
    options: RunOptions = {},
  ): Promise<void> {
    const stdin = `${lines.join("\n")}\n`;
    await this.#runner.run(argv, { ...options, netnsPath, stdin, timeoutMs: COMMAND_TIMEOUT_MS });
  }
}

function tapLines(network: MachineNetwork, gid: number): string[] {
  return [
    `tuntap add dev ${TAP} mode tap group ${gid}`,
    `link set ${TAP} mtu ${network.mtuBytes}`,
    `link set ${TAP} addrgenmode none`,
    `link set ${TAP} up`,
  ];
}

function redirectLines(network: MachineNetwork): string[] {
  return [
    [network.device, TAP],
    [TAP, network.device],
  ].flatMap(([from, to]) => [
    `qdisc add dev ${from} ingress`,
    `filter add dev ${from} parent ffff: protocol all u32 match u8 0 0 action mirred egress redirect dev ${to}`,
  ]);
}
