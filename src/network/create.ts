import type { Logger } from "#lib/log";
import { MAX_SLOTS, type ServerNetwork } from "./addresses.ts";
import type { SlotTools } from "./netslot.ts";
import type { SlotCompanion } from "./network.ts";
import { SlotPool } from "./slots.ts";
import { NetnsWiring } from "./wiring.ts";

export interface SlotsOptions extends SlotTools {
  readonly server: ServerNetwork;
  readonly log: Logger;
  /** How many slots to keep ready. */
  readonly ready: number;
  /** How many there may be, held ones included. */
  readonly max?: number;
  readonly companion?: SlotCompanion;
  /** Whether sandboxes start just now: what can wait does. */
  readonly isBusy?: () => boolean;
}

/** The slots of a server on this host. Needs root and `nft`. Call `recover` first. */
export function createSlots(options: SlotsOptions): SlotPool {
  const { runner, netslotPath, max = MAX_SLOTS, ...pool } = options;
  return new SlotPool({ ...pool, wiring: new NetnsWiring({ runner, netslotPath }, options.server), max });
}

/** Removes every namespace, link, address, route and table of a server: what a stale claim leaves. Repeatable. */
export async function removeServerNetwork(tools: SlotTools, server: ServerNetwork): Promise<void> {
  const wiring = new NetnsWiring(tools, server);
  await wiring.renew([...(await wiring.inspect()).keys()], []);
  await wiring.clearHost();
}
