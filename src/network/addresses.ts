/**
 * What a server's index decides: names and addresses of everything it makes in the host's network. Pure.
 * Indexes are claimed (`claim.ts`), so that several servers live side by side on one host.
 */

/** Servers a host has room for: one /21 of 198.18.0.0/15 each. */
export const MAX_SERVERS = 64;
/** Slots of one server: its /21 less the first address, the gateway's, and the last. */
export const MAX_SLOTS = 2045;

const BLOCKS_START = (198 << 24) | (18 << 16);
const BLOCK_SIZE = 2048;
const FIRST_SLOT_OFFSET = 2;

export interface ServerNetwork {
  readonly index: number;
  /** `ae<N>`: every namespace and link of this server, and its nftables table, starts with it. */
  readonly prefix: string;
  /** CIDR all slots of this server lie in. */
  readonly block: string;
  /** The host's own address towards every slot: the one peer a sandbox ever sees. */
  readonly gateway: string;
}

export interface SlotNetwork {
  readonly index: number;
  /** Names under /run/netns. */
  readonly sandboxNetns: string;
  readonly edgeNetns: string;
  /** The host's end of the link into the edge namespace. */
  readonly hostLink: string;
  /** The slot's address as the host sees it. */
  readonly hostAddress: string;
}

/** Throws RangeError for an index outside 0 … MAX_SERVERS - 1. */
export function serverNetwork(index: number): ServerNetwork {
  checkRange("server", index, MAX_SERVERS);
  const start = BLOCKS_START + index * BLOCK_SIZE;
  return { index, prefix: `ae${index}`, block: `${dotted(start)}/21`, gateway: dotted(start + 1) };
}

/** Throws RangeError for an index outside 0 … MAX_SLOTS - 1. */
export function slotNetwork(server: ServerNetwork, index: number): SlotNetwork {
  checkRange("slot", index, MAX_SLOTS);
  return {
    index,
    sandboxNetns: `${server.prefix}-s${index}`,
    edgeNetns: `${server.prefix}-e${index}`,
    hostLink: `${server.prefix}h${index}`,
    hostAddress: dotted(BLOCKS_START + server.index * BLOCK_SIZE + FIRST_SLOT_OFFSET + index),
  };
}

/** The slot a namespace or host link of this server belongs to; undefined: the name is not of this server's making. */
export function slotOfName(server: ServerNetwork, name: string): number | undefined {
  if (!name.startsWith(server.prefix)) return undefined;
  const digits = /^(?:-s|-e|h)(0|[1-9]\d{0,3})$/.exec(name.slice(server.prefix.length))?.[1];
  const index = Number(digits ?? Number.NaN);
  return index < MAX_SLOTS ? index : undefined;
}

function checkRange(what: string, index: number, limit: number): void {
  if (!Number.isInteger(index) || index < 0 || index >= limit) {
    throw new RangeError(`${what} index ${index} is outside 0 … ${limit - 1}`);
  }
}

function dotted(address: number): string {
  return [24, 16, 8, 0].map((shift) => (address >>> shift) & 255).join(".");
}
