export { connectStore } from "./client.ts";
export type { MountedImage, Store } from "./store.ts";
