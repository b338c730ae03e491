export { installAgent } from "./agents.ts";
export { Background } from "./background.ts";
export { Collector } from "./collector.ts";
export { type Context, IMPORT_LEASE } from "./context.ts";
export { Entries } from "./entries.ts";
export { Orchestrator } from "./orchestrator.ts";
export { NodePaths } from "./paths.ts";
export { Journal } from "./record.ts";
export { Routes } from "./routes.ts";
