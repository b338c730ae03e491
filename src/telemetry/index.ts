export { Telemetry } from "./telemetry.ts";
