export { MAX_SERVERS, MAX_SLOTS, type ServerNetwork, serverNetwork } from "./addresses.ts";
export { CLAIMS_DIR, type ClaimOptions, claimServer, type ServerClaim } from "./claim.ts";
export { createSlots, removeServerNetwork } from "./create.ts";
export type { SlotTools } from "./netslot.ts";
export * from "./network.ts";
export { DEFAULT_POLICY } from "./policy.ts";
export { SlotPool } from "./slots.ts";
export { forwardingDroppedBy } from "./wiring.ts";
