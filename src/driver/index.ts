export * from "./choose.ts";
export * from "./driver.ts";
export * from "./examine.ts";
export type { KvmFacts } from "./kvm.ts";
