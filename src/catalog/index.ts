export * from "./catalog.ts";
export { MemoryCatalog } from "./memory.ts";
export * from "./reference.ts";
export { CATALOG_FORMAT, SqliteCatalog } from "./sqlite.ts";
export * from "./templates.ts";
