import type { NetworkPolicy } from "#domain";
import type { ServerNetwork } from "./addresses.ts";
import { INNER_ADDRESS } from "./network.ts";

/**
 * Policy → nftables text. Pure. Two layers: each slot's edge namespace decides for its sandbox; the host's own table
 * holds even if an edge namespace lets something through. Tables are replaced whole and in one transaction: there is no
 * moment without rules, and flows already accepted go on.
 */

/** Links inside an edge namespace. */
export const EDGE_HOST_LINK = "host0";
export const EDGE_SANDBOX_LINK = "box0";

/** What slots in the pool carry; other policies are applied when a slot is taken. */
export const DEFAULT_POLICY: NetworkPolicy = { internet: true };

/** Everything that is not the public internet (IANA's special-purpose registry): never reachable, whatever the policy. */
export const NEVER_REACHABLE: readonly string[] = [
  "0.0.0.0/8", // this network
  "10.0.0.0/8", // private
  "100.64.0.0/10", // carrier-grade NAT, cloud internals
  "127.0.0.0/8", // loopback
  "169.254.0.0/16", // link-local, cloud metadata
  "172.16.0.0/12", // private
  "192.0.0.0/24", // protocol assignments, cloud metadata
  "192.0.2.0/24", // documentation
  "192.168.0.0/16", // private
  "198.18.0.0/15", // benchmarking: our slots and gateways
  "198.51.100.0/24", // documentation
  "203.0.113.0/24", // documentation
  "224.0.0.0/4", // multicast
  "240.0.0.0/4", // reserved, broadcast
];

/** Flows that one sandbox may have open to the internet. Each is an entry in the host's table of connections too, which all
 *  sandboxes and the host itself share, and which holds 65,536 on small hosts. */
export const FLOWS_MAX = 4096;
/** How fast flows may be opened after that many: the host remembers a closed one for up to 120 s more. */
const NEW_FLOWS_PER_SECOND = 128;

/** Not as a set: while a table is replaced, a new one can be seen empty. */
const NEVER_RULES = NEVER_REACHABLE.map((net) => `ip daddr ${net} goto refuse`);

/** Refusals are answered, so that programs inside fail at once instead of waiting for a timeout. */
const REFUSE_CHAIN = `chain refuse {
    meta l4proto tcp reject with tcp reset
    reject with icmpx admin-prohibited
  }`;

/**
 * The tables of a slot's edge namespace, the same in all slots with this policy: a slot's own address is the one its link to
 * the host has. Only the host's gateway address opens connections into the sandbox: what still arrives for a slot's former
 * sandbox from elsewhere does not reach the present one.
 *
 * `leave` decides about the first packet of each flow. A TCP flow starts with its SYN: taken up in the middle, one made-up
 * packet would be an entry for days. The rate comes before the count, whose list every packet it sees makes longer; what
 * exceeds the rate is tried again by the sender.
 */
export function edgeRules(server: ServerNetwork, policy: NetworkPolicy): string {
  const fromHost = `iifname "${EDGE_HOST_LINK}"`;
  const fromSandbox = `iifname "${EDGE_SANDBOX_LINK}"`;
  return `table inet aenv {
  ${REFUSE_CHAIN}
  chain genuine {
    type filter hook prerouting priority raw; policy accept;
    meta nfproto ipv6 drop
    ${fromSandbox} ip saddr != ${INNER_ADDRESS} drop
  }
  chain translate_in {
    type nat hook prerouting priority dstnat; policy accept;
    ${fromHost} ip saddr ${server.gateway} fib daddr . iif type local meta l4proto { tcp, udp } dnat ip to ${INNER_ADDRESS}
  }
  chain translate_out {
    type nat hook postrouting priority srcnat; policy accept;
    oifname "${EDGE_HOST_LINK}" masquerade
  }
  chain leave {
    ct status confirmed accept
    tcp flags & (fin | syn | rst | ack) != syn goto refuse
    limit rate over ${NEW_FLOWS_PER_SECOND}/second burst ${FLOWS_MAX} packets drop
    ct count over ${FLOWS_MAX} goto refuse
    accept
  }
  chain egress {
    ${egressRules(policy).join("\n    ")}
  }
  chain to_edge {
    type filter hook input priority filter; policy drop;
    ${fromSandbox} goto refuse
  }
  chain through_edge {
    type filter hook forward priority filter; policy drop;
    ct state established,related accept
    ${fromHost} oifname "${EDGE_SANDBOX_LINK}" ct state new ct status dnat accept
    ${fromSandbox} oifname "${EDGE_HOST_LINK}" ct state new goto egress
  }
}
${NEIGHBOURS}`;
}

/** Whoever asks by ARP becomes a neighbour, and the table of neighbours is one for all namespaces of the host: a sandbox that asked in
 *  many names would fill it. */
const NEIGHBOURS = `table arp aenv {
  chain genuine {
    type filter hook input priority filter; policy accept;
    iifname "${EDGE_SANDBOX_LINK}" arp saddr ip != ${INNER_ADDRESS} drop
  }
}
`;

function egressRules(policy: NetworkPolicy): string[] {
  return policy.internet ? [...NEVER_RULES, "goto leave"] : ["goto refuse"];
}

/** How long the host remembers an idle TCP flow of a sandbox: RFC 5382's least. The kernel's own five days would let the flows of
 *  sandboxes that were killed pile up. */
const IDLE_TCP_S = 7440;

/** The server's table in the host's namespace, as `nft -f` replaces it. */
export function hostRules(server: ServerNetwork): string {
  const fromSlots = `iifname "${server.prefix}h*"`;
  const toSlots = `oifname "${server.prefix}h*"`;
  const unasked = "ct state != { established, related }";
  // `local` comes before other people's destination NAT: a published container port on a host address is the host.
  // `to_host` comes after it: a transparent proxy's redirect is the host as well.
  // `from_host`: what has been restored answers for a moment before it knows whose it is, and has whatever token it was captured
  // with. The edge and aenvd are root's; a reply without a socket has no user, and passes.
  return `${dropTable(server.prefix)}table inet ${server.prefix} {
  ${REFUSE_CHAIN}
  ct timeout slot_tcp {
    protocol tcp
    l3proto ip
    policy = { established: ${IDLE_TCP_S} }
  }
  chain local {
    type filter hook prerouting priority mangle; policy accept;
    ${fromSlots} meta nfproto ipv6 drop
    ${fromSlots} ip saddr != ${server.block} drop
    ${fromSlots} meta l4proto tcp ct timeout set "slot_tcp"
    ${fromSlots} fib daddr type != unicast ${unasked} goto refuse
  }
  chain to_host {
    type filter hook input priority filter; policy accept;
    ${fromSlots} ${unasked} goto refuse
  }
  chain from_host {
    type filter hook output priority filter; policy accept;
    ${toSlots} meta skuid != 0 goto refuse
  }
  chain through_host {
    type filter hook forward priority filter; policy accept;
    ${NEVER_RULES.map((rule) => `${fromSlots} ${rule}`).join("\n    ")}
    ${toSlots} ${unasked} drop
    ${fromSlots} tcp flags syn tcp option maxseg size set rt mtu
    ${toSlots} tcp flags syn tcp option maxseg size set rt mtu
  }
  chain translate_out {
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr ${server.block} ip saddr != ${server.gateway} oifname != "${server.prefix}h*" masquerade
  }
}
`;
}

/** Removes the server's table, also when it is not there. */
export function removeHostRules(server: ServerNetwork): string {
  return dropTable(server.prefix);
}

/** Naming a table makes it, so the delete that follows always has one to delete. */
function dropTable(name: string): string {
  return `table inet ${name}\ndelete table inet ${name}\n`;
}
