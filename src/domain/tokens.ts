import { newToken } from "./ids.ts";
import type { Sandbox, SandboxSpec } from "./sandbox.ts";

/** The secrets of a new sandbox, whatever it is made from: none is anybody else's. */
export function tokensFor(spec: SandboxSpec): Pick<Sandbox, "accessToken" | "trafficToken"> {
  return {
    ...(spec.secure && { accessToken: newToken() }),
    ...(spec.traffic?.isPublic === false && { trafficToken: newToken() }),
  };
}
