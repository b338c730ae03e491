export { Edge, type EdgeOptions } from "./edge.ts";
export { RouteFeed } from "./feed.ts";
export { forwarderName } from "./wire.ts";
