export { RouteFeed } from "./feed.ts";
export { forwarderName } from "./wire.ts";
