export { AGENT_PORT, Guest, type GuestIdentity, type MemoryVictim } from "./guest.ts";
