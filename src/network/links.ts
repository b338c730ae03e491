import type { ServerNetwork, SlotNetwork } from "./addresses.ts";
import { INNER_ADDRESS, INNER_GATEWAY, INNER_PREFIX } from "./network.ts";
import { EDGE_HOST_LINK, EDGE_SANDBOX_LINK } from "./policy.ts";

/**
 * What a slot is made of, as lines for `ip -batch`. Pure.
 *
 *   sandbox namespace            edge namespace                         host
 *   eth0 169.254.0.21/30 ─────── box0 169.254.0.22/30
 *                                host0 198.18.x.y/32 ────────────────── ae<N>h<n>, route to 198.18.x.y from the gateway
 *
 * Link-layer addresses are the same in every slot and neighbours are entered by hand: nobody asks by ARP, a guest restored
 * into another slot finds the gateway where it was, and a thousand slots do not fill the host's neighbour table.
 * No link gets an IPv6 address; inside, `::1` stays.
 */

/** Name of the device in a sandbox's namespace. */
export const SANDBOX_LINK = "eth0";

export const SANDBOX_MAC = "02:ae:00:00:00:01";
export const EDGE_SANDBOX_MAC = "02:ae:00:00:00:02";
const EDGE_HOST_MAC = "02:ae:00:00:00:03";
const HOST_MAC = "02:ae:00:00:00:04";

/** Run on the host, after the two namespaces are there. */
export function slotLinkLines(server: ServerNetwork, slot: SlotNetwork, mtuBytes: number): string[] {
  const { hostLink, edgeNetns, sandboxNetns } = slot;
  return [
    `link add ${hostLink} address ${HOST_MAC} mtu ${mtuBytes} type veth` +
      ` peer name ${EDGE_HOST_LINK} address ${EDGE_HOST_MAC} mtu ${mtuBytes} netns ${edgeNetns}`,
    `link add ${SANDBOX_LINK} address ${SANDBOX_MAC} mtu ${mtuBytes} netns ${sandboxNetns} type veth` +
      ` peer name ${EDGE_SANDBOX_LINK} address ${EDGE_SANDBOX_MAC} mtu ${mtuBytes} netns ${edgeNetns}`,
    `link set ${hostLink} addrgenmode none`,
    ...hostRouteLines(server, slot),
  ];
}

/** The host's way to a slot. Repeatable. */
export function hostRouteLines(server: ServerNetwork, slot: SlotNetwork): string[] {
  return [
    `link set ${slot.hostLink} up`,
    `neigh replace ${slot.hostAddress} lladdr ${EDGE_HOST_MAC} dev ${slot.hostLink} nud permanent`,
    `route replace ${slot.hostAddress}/32 dev ${slot.hostLink} src ${server.gateway}`,
  ];
}

/** Run in the edge namespace. */
export function edgeLines(server: ServerNetwork, slot: SlotNetwork): string[] {
  return [
    `link set ${EDGE_HOST_LINK} addrgenmode none`,
    `link set ${EDGE_SANDBOX_LINK} addrgenmode none`,
    `addr add ${slot.hostAddress}/32 dev ${EDGE_HOST_LINK}`,
    `addr add ${INNER_GATEWAY}/${INNER_PREFIX} dev ${EDGE_SANDBOX_LINK}`,
    `link set ${EDGE_HOST_LINK} up`,
    `link set ${EDGE_SANDBOX_LINK} up`,
    `neigh replace ${server.gateway} lladdr ${HOST_MAC} dev ${EDGE_HOST_LINK} nud permanent`,
    `neigh replace ${INNER_ADDRESS} lladdr ${SANDBOX_MAC} dev ${EDGE_SANDBOX_LINK} nud permanent`,
    `route replace default via ${server.gateway} dev ${EDGE_HOST_LINK} onlink`,
  ];
}

/** Run in the sandbox's namespace. Loopback must be up: a runtime skips devices that are down. */
export const SANDBOX_LINES: readonly string[] = [
  "link set lo up",
  `link set ${SANDBOX_LINK} addrgenmode none`,
  `addr add ${INNER_ADDRESS}/${INNER_PREFIX} dev ${SANDBOX_LINK}`,
  `link set ${SANDBOX_LINK} up`,
  `neigh replace ${INNER_GATEWAY} lladdr ${EDGE_SANDBOX_MAC} dev ${SANDBOX_LINK} nud permanent`,
  `route replace default via ${INNER_GATEWAY} dev ${SANDBOX_LINK}`,
];

/** What all slots of a server share on the host. The address is of scope link so that it is never picked as the source of
 *  anything else; addresses of slots that are not there are unreachable at once instead of leaving by the default route. */
export function hostLines(server: ServerNetwork): string[] {
  return [`addr replace ${server.gateway}/32 dev lo scope link`, `route replace unreachable ${server.block}`];
}

/** Undoes hostLines. */
export function unhostLines(server: ServerNetwork): string[] {
  return [`route del unreachable ${server.block}`, `addr del ${server.gateway}/32 dev lo`];
}
