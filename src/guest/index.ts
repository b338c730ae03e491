export { AGENT_PORT, Guest, type GuestIdentity, type MemoryVictim } from "./guest.ts";
export { type CommandEnd, GuestShell, type Stream } from "./shell.ts";
export type { Reading, TelemetryAnswer } from "./telemetry.ts";
