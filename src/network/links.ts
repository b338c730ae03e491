import type { ServerNetwork, SlotNetwork } from "./addresses.ts";
import { INNER_ADDRESS, INNER_GATEWAY, INNER_PREFIX } from "./network.ts";
import type { Interface, Pair, Plan } from "./plan.ts";
import { EDGE_HOST_LINK, EDGE_SANDBOX_LINK } from "./policy.ts";

/**
 * What a slot is made of, as plans. Pure.
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

const EVERYWHERE = "0.0.0.0/0";

/** Makes slots of which nothing is there. `tables`: their compiled rules, which are in place before an edge has a link. */
export function slotsPlan(
  server: ServerNetwork,
  slots: readonly SlotNetwork[],
  mtuBytes: number,
  tables: string,
): Omit<Plan, "remove"> {
  const edges = slots.map(({ edgeNetns }) => edgeNetns);
  return {
    namespaces: slots.flatMap(({ sandboxNetns, edgeNetns }) => [sandboxNetns, edgeNetns]),
    rules: [{ namespaces: edges, tables }],
    forwarding: edges,
    pairs: slots.flatMap((slot) => slotPairs(slot, mtuBytes)),
    interfaces: slots.flatMap((slot) => [hostSide(server, slot), ...edgeSides(server, slot), ...sandboxSides(slot)]),
  };
}

/** Brings the rules of a slot and the host's way to it up to date. */
export function adoptionPlan(server: ServerNetwork, slot: SlotNetwork, tables: string): Plan {
  return { rules: [{ namespaces: [slot.edgeNetns], tables }], interfaces: [hostSide(server, slot)] };
}

/** Removes whatever there is of slots. */
export function removalPlan(slots: readonly SlotNetwork[]): Pick<Plan, "remove"> {
  return {
    remove: {
      // The link goes first and by name: the kernel takes down a namespace's own links some time later, and until then the
      // name is taken on the host.
      links: slots.map(({ hostLink }) => hostLink),
      namespaces: slots.flatMap(({ sandboxNetns, edgeNetns }) => [sandboxNetns, edgeNetns]),
    },
  };
}

/** What all slots of a server share on the host. The address is of scope link so that it is never picked as the source of
 *  anything else; addresses of slots that are not there are unreachable at once instead of leaving by the default route. */
export function sharedInterface(server: ServerNetwork): Interface {
  return {
    namespace: "",
    name: "lo",
    addresses: [{ prefix: `${server.gateway}/32`, link: true }],
    routes: [{ to: server.block, unreachable: true }],
  };
}

function slotPairs({ hostLink, edgeNetns, sandboxNetns }: SlotNetwork, mtuBytes: number): Pair[] {
  return [
    {
      mtuBytes,
      ends: [
        { namespace: "", name: hostLink, mac: HOST_MAC },
        { namespace: edgeNetns, name: EDGE_HOST_LINK, mac: EDGE_HOST_MAC },
      ],
    },
    {
      mtuBytes,
      ends: [
        { namespace: sandboxNetns, name: SANDBOX_LINK, mac: SANDBOX_MAC },
        { namespace: edgeNetns, name: EDGE_SANDBOX_LINK, mac: EDGE_SANDBOX_MAC },
      ],
    },
  ];
}

function hostSide(server: ServerNetwork, slot: SlotNetwork): Interface {
  return {
    namespace: "",
    name: slot.hostLink,
    up: true,
    neighbours: [{ address: slot.hostAddress, mac: EDGE_HOST_MAC }],
    routes: [{ to: `${slot.hostAddress}/32`, source: server.gateway }],
  };
}

function edgeSides(server: ServerNetwork, slot: SlotNetwork): Interface[] {
  const namespace = slot.edgeNetns;
  return [
    {
      namespace,
      name: EDGE_HOST_LINK,
      up: true,
      addresses: [{ prefix: `${slot.hostAddress}/32` }],
      neighbours: [{ address: server.gateway, mac: HOST_MAC }],
      routes: [{ to: EVERYWHERE, via: server.gateway }],
    },
    {
      namespace,
      name: EDGE_SANDBOX_LINK,
      up: true,
      addresses: [{ prefix: `${INNER_GATEWAY}/${INNER_PREFIX}` }],
      neighbours: [{ address: INNER_ADDRESS, mac: SANDBOX_MAC }],
    },
  ];
}

/** Loopback must be up: a runtime skips devices that are down. */
function sandboxSides({ sandboxNetns: namespace }: SlotNetwork): Interface[] {
  return [
    { namespace, name: "lo", up: true },
    {
      namespace,
      name: SANDBOX_LINK,
      up: true,
      addresses: [{ prefix: `${INNER_ADDRESS}/${INNER_PREFIX}` }],
      neighbours: [{ address: INNER_GATEWAY, mac: EDGE_SANDBOX_MAC }],
      routes: [{ to: EVERYWHERE, via: INNER_GATEWAY }],
    },
  ];
}
