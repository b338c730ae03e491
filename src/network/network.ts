import type { NetworkPolicy } from "#domain";

/**
 * Slots: where a machine's network lives. A slot is two namespaces made ahead: the sandbox's, with the same inner address
 * in every slot, and an edge namespace that translates to the slot's own host-side address and carries the policy.
 */
export interface Slots {
  /** Takes a ready slot (makes one when the pool is empty) and applies the policy to it. Errors: exhausted. */
  acquire(policy: NetworkPolicy): Promise<Slot>;
  /** Gives a slot back: the very object that was handed out, so that a late second release takes it from nobody. Repeatable.
   *  It is removed and made anew later, as the pool's own work; `close` awaits that.
   *  Precondition: nobody routes to the slot's address any more. */
  release(slot: Slot): Promise<void>;
  /** Takes up the slots that sandboxes of an earlier aenvd hold, by index, and removes every other leftover. Called once,
   *  first. A held slot of which parts are missing is removed and not among the returned: its sandbox has no network. */
  recover(held: readonly HeldSlot[]): Promise<Slot[]>;
  /** `free`: how many can still be acquired, ready or not. */
  stats(): { readonly free: number; readonly total: number };
  /** Stops refilling; slots stay (sandboxes may run on). `remove: true` also removes the free ones and the shared parts if none is held. */
  close(options?: { readonly remove?: boolean }): Promise<void>;
}

export interface HeldSlot {
  readonly index: number;
  readonly policy: NetworkPolicy;
}

export interface Slot {
  readonly index: number;
  /** IPv4 address of the sandbox as the host sees it; every TCP and UDP port is translated one to one. */
  readonly hostAddress: string;
  /** `/run/netns/NAME` of the sandbox's namespace. */
  readonly netnsPath: string;
  /** The sandbox's device there, and what it has to keep to: nothing else reaches or leaves the slot. */
  readonly device: string;
  readonly macAddress: string;
  /** With the length of its prefix. */
  readonly address: string;
  readonly gateway: string;
  readonly gatewayMacAddress: string;
  readonly mtuBytes: number;
}

/** What is done in a slot that waits to be taken, and undone before one is removed. */
export interface SlotCompanion {
  prepare(slot: Slot): Promise<void>;
  /** Also of slots that were taken, or never prepared. Repeatable. */
  unprepare(slot: Slot): Promise<void>;
}

/** The address every sandbox sees as its own, and its gateway (the same in all). */
export const INNER_ADDRESS = "169.254.0.21";
export const INNER_PREFIX = 30;
export const INNER_GATEWAY = "169.254.0.22";
