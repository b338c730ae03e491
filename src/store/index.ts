export { connectStore } from "./client.ts";
export type { Store } from "./store.ts";
