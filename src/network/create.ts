import type { Logger } from "#lib/log";
import type { CommandRunner } from "#lib/run";
import { MAX_SLOTS, type ServerNetwork } from "./addresses.ts";
import type { SlotCompanion } from "./network.ts";
import { SlotPool } from "./slots.ts";
import { NetnsWiring } from "./wiring.ts";

export interface SlotsOptions {
  readonly runner: CommandRunner;
  readonly server: ServerNetwork;
  readonly log: Logger;
  /** How many slots to keep ready. */
  readonly ready: number;
  /** How many there may be, held ones included. */
  readonly max?: number;
  readonly companion?: SlotCompanion;
}

/** The slots of a server on this host. Needs root, `ip` and `nft`. Call `recover` first. */
export function createSlots(options: SlotsOptions): SlotPool {
  const { runner, max = MAX_SLOTS, ...pool } = options;
  return new SlotPool({ ...pool, wiring: new NetnsWiring(runner, options.server), max });
}

/** Removes every namespace, link, address, route and table of a server: what a stale claim leaves. Repeatable. */
export async function removeServerNetwork(runner: CommandRunner, server: ServerNetwork): Promise<void> {
  const wiring = new NetnsWiring(runner, server);
  await wiring.remove([...(await wiring.inspect()).keys()]);
  await wiring.clearHost();
}
