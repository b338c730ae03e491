export * from "./cluster.ts";
export { SingleNodeCluster } from "./single.ts";
