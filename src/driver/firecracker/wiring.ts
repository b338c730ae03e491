import type { MachineNetwork } from "../driver.ts";

/**
 * How a VM comes to a slot's network: a tap device beside the slot's own, and every frame that arrives at one leaves by the
 * other, before the namespace's own stack sees it. So the guest has the link-layer and inner address of the slot's device,
 * and nothing of the slot is changed. Pure: lines for `ip -batch` and `tc -batch`, run inside the namespace.
 */

export const TAP = "tap0";

/** `gid`: whose processes may open the tap. */
export function tapLines(network: MachineNetwork, gid: number): string[] {
  return [
    `tuntap add dev ${TAP} mode tap group ${gid}`,
    `link set ${TAP} mtu ${network.mtuBytes}`,
    `link set ${TAP} addrgenmode none`,
    `link set ${TAP} up`,
  ];
}

export function redirectLines(network: MachineNetwork): string[] {
  return [
    [network.device, TAP],
    [TAP, network.device],
  ].flatMap(([from, to]) => [
    `qdisc add dev ${from} ingress`,
    `filter add dev ${from} parent ffff: protocol all u32 match u8 0 0 action mirred egress redirect dev ${to}`,
  ]);
}
